"""Host side of `hpcgnn.ops.bit_gemm`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import bit_gemm as kernels
from hpcgnn._ext import bit_gemm_packing as packing
from hpcgnn.ops.arena import empty
from hpcgnn.ops.bit_gemm import BitLines, CodeRange, LineValues, Rescaling, padded, words_of
from hpcgnn.ops.host.simd import simd_level


def pack_codes(codes: torch.Tensor, lines: BitLines, is_by_column: bool) -> None:
    """Codes of a byte each into the zeroed words of `lines`."""
    simd_level()
    packing.pack_codes(codes.numpy(), lines.words.numpy(), is_by_column)


def pack_values(values: torch.Tensor, codes: CodeRange, lines: BitLines, is_by_column: bool) -> None:
    """Codes of float32 values into the zeroed words of `lines`."""
    simd_level()
    packing.pack_values(values.detach().numpy(), codes.low.numpy(), codes.step.numpy(), codes.offset,
                        lines.words.numpy(), is_by_column)


def unpack_codes(lines: BitLines) -> torch.Tensor:
    """Return (num_lines, length) uint8."""
    codes = empty((lines.num_lines, lines.length), torch.uint8)
    packing.unpack_lines(lines.words.numpy(), codes.numpy())
    return codes


def sum_lines(lines: BitLines) -> torch.Tensor:
    """Return (num_lines,) int64."""
    sums = torch.zeros(lines.num_lines, dtype=torch.int64)
    packing.sum_lines(lines.words.numpy(), sums.numpy())
    return sums


def multiply_bits(left: BitLines, right: BitLines, rescaling: Rescaling | None,
                  codes: CodeRange | None) -> torch.Tensor | BitLines:
    """Return the product of lines, finished as the arguments say."""
    matrix = kernels.Left(left.words.numpy(), left.words.shape[1], left.words.shape[2] // 4)
    return finish(matrix, left.num_lines, right, rescaling, codes)[0]


def finish(left: kernels.Left, num_rows: int, right: BitLines, rescaling: Rescaling | None,
           codes: CodeRange | None) -> tuple[torch.Tensor | BitLines, int]:
    """Return the product of any left matrix, and how many of its tiles were multiplied."""
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
