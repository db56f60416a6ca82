"""Products of matrices of 1- to 8-bit codes, held as planes of bits, and packing into planes.

Codes are unsigned. A line of 2-bit codes (3, 1, 2) has the planes 110 (low bits) and 101 (high bits). A product of two
lines is a sum over pairs of planes: popcount(left_i AND right_j), shifted by i + j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn._ext import bit_gemm as kernels
from hpcgnn._ext import bit_gemm_packing as packing
from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dispatch import by_device
from hpcgnn.ops.simd import simd_level

LARGEST_BIT_WIDTH = 8
PAD8, PAD128 = 8, 128      # lines are padded to a multiple of one of these
STEP_BITS = 128            # the contracted side is padded to whole steps
WORD_BITS = 32
LARGEST_SUM = 2**31 - 1


@dataclass(frozen=True)
class BitLines:
    """Lines of codes as planes of bits: rows of a left matrix, or columns of a right one.

    words : (bit_width, padded lines, 4 * ceil(length / 128)) int32      bit k % 32 of word k / 32 of plane p is bit p
                                     of the line's code k; lines are padded to a multiple of 8, all with zeros
    num_lines, length : int          without padding
    """

    words: torch.Tensor
    num_lines: int
    length: int

    def __post_init__(self) -> None:
        shape, num_words = tuple(self.words.shape), words_of(self.length)
        is_fit = len(shape) == 3 and shape[1] % PAD8 == 0 and shape[1] >= self.num_lines and shape[2] == num_words
        if self.words.dtype != torch.int32 or not self.words.is_contiguous() or not is_fit:
            raise KernelError(f"planes of {self.num_lines} lines of {self.length} codes need contiguous int32 words of "
                              f"shape (bits, {padded(self.num_lines, PAD8)} or another multiple of 8, {num_words}), "
                              f"found {self.words.dtype} of {shape}")
        check_bit_width(shape[0])

    @property
    def bit_width(self) -> int:
        return self.words.shape[0]


@dataclass(frozen=True)
class CodeRange:
    """How values become codes: floor((value - low) / step + offset), clamped to [0, 2^bit_width - 1].

    low and step are numbers, or for packing (1,) or (num_lines,) float32 tensors.
    """

    bit_width: int
    low: Any
    step: Any
    offset: float


@dataclass(frozen=True)
class LineValues:
    """A line's codes stand for zero_point + step * code; `sum` is step * sum of codes. (num_lines,) float32 each."""

    step: torch.Tensor
    zero_point: torch.Tensor
    sum: torch.Tensor


@dataclass(frozen=True)
class Rescaling:
    """Turns sums of products into values: gain * product + bias, per column or row, then max(0, .) if has_relu."""

    rows: LineValues
    columns: LineValues
    gain: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    is_by_row: bool = False
    has_relu: bool = False


def padded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def words_of(length: int) -> int:
    return padded(length, STEP_BITS) // WORD_BITS


def check_bit_width(bit_width: int) -> None:
    if not 1 <= bit_width <= LARGEST_BIT_WIDTH:
        raise KernelError(f"a bit-width is {bit_width}; expected 1 to {LARGEST_BIT_WIDTH}")


def pack_codes(codes: torch.Tensor, bit_width: int, is_by_column: bool, line_padding: int = PAD8) -> BitLines:
    """Planes of (num_rows, num_columns) contiguous uint8 codes < 2**bit_width.

    Lines are the matrix's columns if is_by_column, else its rows, padded to a multiple of 8 or 128. Raises KernelError
    for another width, type or padding.
    """
    lines = _empty_lines(codes, torch.uint8, bit_width, is_by_column, line_padding)
    _pack_codes.on(codes.device)(codes, lines, is_by_column)
    return lines


def pack_values(values: torch.Tensor, codes: CodeRange, is_by_column: bool, line_padding: int = PAD8) -> BitLines:
    """Planes of the codes of finite float32 values, quantized while packed; low and step are single or per line."""
    lines = _empty_lines(values, torch.float32, codes.bit_width, is_by_column, line_padding)
    if len(codes.low) != len(codes.step) or len(codes.low) not in (1, lines.num_lines):
        raise KernelError(f"{lines.num_lines} lines need 1 or {lines.num_lines} lows and steps, "
                          f"found {len(codes.low)} and {len(codes.step)}")
    _pack_values.on(values.device)(values, codes, lines, is_by_column)
    return lines


def unpack_codes(lines: BitLines) -> torch.Tensor:
    return _unpack_codes.on(lines.words.device)(lines)


def sum_lines(lines: BitLines) -> torch.Tensor:
    return _sum_lines.on(lines.words.device)(lines)


def multiply_bits(left: BitLines, right: BitLines, rescaling: Rescaling | None = None,
                  codes: CodeRange | None = None) -> torch.Tensor | BitLines:
    """sum over k of left[m, k] * right[k, n], for lines m of the left and n of the right.

    It is the sum over planes i of the left and j of the right of 2^(i + j) popcount(left_i AND right_j).

    Returns (left.num_lines, right.num_lines) int32; with a rescaling, float32 values; with a code range too, BitLines
    of the values' codes, one line per row. Raises KernelError for sums that could pass 2^31 - 1.

    Reference: QGTC, Eq. (5)-(7).
    """
    check_product(left.length, left.bit_width, right)
    return _multiply_bits.on(right.words.device)(left, right, rescaling, codes)


def check_product(length: int, left_width: int, right: BitLines) -> None:
    """Raise KernelError if the contracted sides disagree, or an int32 sum of products could overflow."""
    if length != right.length:
        raise KernelError(f"a product contracts {length} columns of its left side with {right.length} rows of its "
                          "right side; the numbers must be equal")
    largest = length * (2**left_width - 1) * (2**right.bit_width - 1)
    if largest > LARGEST_SUM:
        raise KernelError(f"sums of {length} products of {left_width}-bit and {right.bit_width}-bit codes can reach "
                          f"{largest}, past the {LARGEST_SUM} of 32 bits; use fewer bits or contract fewer columns")


def _empty_lines(matrix: torch.Tensor, dtype: torch.dtype, bit_width: int, is_by_column: bool,
                 line_padding: int) -> BitLines:
    check_bit_width(bit_width)
    if matrix.ndim != 2 or matrix.dtype != dtype or not matrix.is_contiguous():
        raise KernelError(f"planes of bits are packed from a contiguous {dtype} matrix, "
                          f"found {matrix.dtype} of shape {tuple(matrix.shape)}")
    if line_padding not in (PAD8, PAD128):
        raise KernelError(f"lines are padded to multiples of {PAD8} or {PAD128}, found {line_padding}")
    num_lines, length = matrix.shape[::-1] if is_by_column else matrix.shape
    words = torch.zeros(bit_width, padded(num_lines, line_padding), words_of(length), dtype=torch.int32,
                        device=matrix.device)
    return BitLines(words, num_lines, length)


@by_device("bit_gemm")
def _pack_codes(codes: torch.Tensor, lines: BitLines, is_by_column: bool) -> None:
    simd_level()
    packing.pack_codes(codes.numpy(), lines.words.numpy(), is_by_column)


@by_device("bit_gemm")
def _pack_values(values: torch.Tensor, codes: CodeRange, lines: BitLines, is_by_column: bool) -> None:
    simd_level()
    packing.pack_values(values.detach().numpy(), codes.low.numpy(), codes.step.numpy(), codes.offset,
                        lines.words.numpy(), is_by_column)


@by_device("bit_gemm")
def _unpack_codes(lines: BitLines) -> torch.Tensor:
    codes = empty((lines.num_lines, lines.length), torch.uint8)
    packing.unpack_lines(lines.words.numpy(), codes.numpy())
    return codes


@by_device("bit_gemm")
def _sum_lines(lines: BitLines) -> torch.Tensor:
    sums = torch.zeros(lines.num_lines, dtype=torch.int64)
    packing.sum_lines(lines.words.numpy(), sums.numpy())
    return sums


@by_device("bit_gemm")
def _multiply_bits(left: BitLines, right: BitLines, rescaling: Rescaling | None,
                   codes: CodeRange | None) -> torch.Tensor | BitLines:
    matrix = kernels.Left(left.words.numpy(), left.words.shape[1], left.words.shape[2] // 4)
    return finish_product(matrix, left.num_lines, right, rescaling, codes)[0]


def finish_product(left: kernels.Left, num_rows: int, right: BitLines, rescaling: Rescaling | None,
                   codes: CodeRange | None) -> tuple[torch.Tensor | BitLines, int]:
    """Product of any left matrix, finished as the arguments say, and the number of tiles multiplied."""
    simd_level()
    words, num_columns = right.words.numpy(), right.num_lines
    if rescaling is None:
        sums = empty((num_rows, num_columns), torch.int32)
        return sums, kernels.multiply_to_sums(left, words, sums.numpy())
    scaling = kernels.Scaling(
        _vectors(rescaling.rows), _vectors(rescaling.columns), right.length, _vector(rescaling.gain),
        rescaling.is_by_row, _vector(rescaling.bias), rescaling.is_by_row, rescaling.has_relu)
    if codes is None:
        values = empty((num_rows, num_columns), torch.float32)
        return values, kernels.multiply_to_values(left, words, scaling, values.numpy())
    planes = torch.zeros(codes.bit_width, padded(num_rows, 8), words_of(num_columns), dtype=torch.int32)
    num_multiplied = kernels.multiply_to_bits(left, words, scaling, num_rows, num_columns, codes.low, codes.step,
                                              codes.offset, planes.numpy())
    return BitLines(planes, num_rows, num_columns), num_multiplied


def _vectors(lines: LineValues) -> tuple[np.ndarray, ...]:
    return tuple(_vector(values) for values in (lines.step, lines.zero_point, lines.sum))


def _vector(values: torch.Tensor | None) -> np.ndarray | None:
    return None if values is None else values.detach().contiguous().numpy()
