"""BitTensor: a matrix of 1- to 8-bit codes as planes of bits, with the scale that turns codes into values.

Plane b holds bit b of every code. Example: the row of 2-bit codes 1, 2, 3 is 101 in plane 0 and 011 in plane 1. A
product of two matrices then is a sum of 1-bit products over pairs of planes, each by AND and popcount.

Rounding "floor" is QGTC's Eq. (2): step = (high - low) / 2^b, code = floor((value - low) / step), clamped. The zero
point is the middle of the lowest bin, low + step / 2: a value is within step / 2 of its code's value. Rounding
"nearest" has step = (high - low) / (2^b - 1), code = round((value - low) / step) and zero point low, so `low` itself,
such as the zeros of a ReLU, comes back exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import (
    PAD8,
    STEP_BITS,
    WORD_BITS,
    BitLines,
    CodeRange,
    check_bit_width,
    pack_codes,
    pack_values,
    sum_lines,
    unpack_codes,
)

PACKINGS = ("column", "row")
OFFSETS = {"floor": 0.0, "nearest": 0.5}
SMALLEST_STEP = torch.finfo(torch.float32).tiny    # a constant line has no range


@dataclass(frozen=True)
class BitTensor:
    """A matrix of codes, packed for one side of a product.

    Packed by "column", 32 neighboring columns of a row share a word: the left side of a product. Packed by "row", 32
    neighboring rows of a column do: the right side. A line (row or column) is contiguous in each plane along the
    contracted dimension.

    Attributes
    ----------
    lines : BitLines                 the words
    packing : {"column", "row"}
    step, zero_point : (1,) or (num_lines,) float32      value = zero_point + step * code; None if codes are the values

    Raises
    ------
    KernelError                      an unknown packing, or a step or zero point that does not fit
    """

    lines: BitLines
    packing: str
    step: torch.Tensor | None = None
    zero_point: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.packing not in PACKINGS:
            raise KernelError(f"a BitTensor is packed by {self.packing!r}; expected 'column' for the left side of a "
                              "product or 'row' for the right side")
        for scale in (self.step, self.zero_point):
            if (scale is None) != (self.step is None):
                raise KernelError("a BitTensor has a step and a zero point, or neither")
            if scale is not None and (scale.dtype != torch.float32 or scale.shape not in ((1,), (self.num_lines,))):
                raise KernelError(f"a BitTensor of {self.num_lines} lines has 1 or {self.num_lines} float32 steps and "
                                  f"zero points, found {scale.dtype} of shape {tuple(scale.shape)}")

    @classmethod
    def from_words(cls, words: torch.Tensor, shape: tuple[int, int], packing: str, step: torch.Tensor | None = None,
                   zero_point: torch.Tensor | None = None) -> BitTensor:
        """Return a BitTensor over existing words, without a copy; `BitLines` has their layout.

        Raises KernelError for a wrong type or shape, or ones in the padding.
        """
        num_lines, length = shape if packing == "column" else shape[::-1]
        made = cls(BitLines(words, num_lines, length), packing, step, zero_point)
        bit, word = (torch.arange(number, device=words.device) for number in (WORD_BITS, words.shape[2]))
        bits = bit + WORD_BITS * word[:, None]
        # Only the last step of words can hold padding.
        is_padding = (bits[-STEP_BITS // WORD_BITS:] >= length).to(torch.int64)
        mask = (is_padding << bit).sum(dim=1)
        if (words[:, :, -len(mask):].to(torch.int64) & mask).any():
            raise KernelError(f"lines of {length} codes have ones past their end; their padding must be zero")
        return made

    @property
    def words(self) -> torch.Tensor:
        """(bit_width, padded lines, words per line) int32, the memory itself."""
        return self.lines.words

    @property
    def device(self) -> torch.device:
        return self.words.device

    @property
    def bit_width(self) -> int:
        """Bits of a code."""
        return self.lines.bit_width

    @property
    def num_lines(self) -> int:
        """Number of rows if packed by column, of columns if packed by row."""
        return self.lines.num_lines

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        shape = self.lines.num_lines, self.lines.length
        return shape if self.packing == "column" else shape[::-1]

    @property
    def nbytes(self) -> int:
        """Bytes of the words, padding included."""
        return self.words.nbytes

    @cached_property
    def code_sums(self) -> torch.Tensor:
        """Sum of each line's codes, (num_lines,) int64."""
        return sum_lines(self.lines)

    def to_codes(self) -> torch.Tensor:
        """Return the codes, (rows, columns) uint8; a transposed view if packed by row."""
        codes = unpack_codes(self.lines)
        return codes if self.packing == "column" else codes.t()

    def to_val(self, bit_width: int | None = None) -> torch.Tensor:
        """Return the matrix: float32 zero_point + step * code, or int32 codes without a scale.

        bit_width is QGTC's argument `to_val(nbits)`; KernelError if it is not the tensor's own.
        """
        if bit_width not in (None, self.bit_width):
            raise KernelError(f"a BitTensor of {self.bit_width} bits can't be read with {bit_width} bits")
        codes = self.to_codes()
        if self.step is None:
            return codes.to(torch.int32)
        shape = (-1, 1) if self.packing == "column" else (1, -1)
        return self.zero_point.view(shape) + self.step.view(shape) * codes


def to_bit(matrix: torch.Tensor, bit_width: int, packing: str = "column", *, low: torch.Tensor | float | None = None,
           high: torch.Tensor | float | None = None, rounding: str = "floor", is_per_line: bool = False,
           line_padding: int = PAD8) -> BitTensor:
    """Pack a matrix into planes of bits, quantizing real values first.

    Parameters
    ----------
    matrix : (rows, columns)         integers and booleans are codes; floats are quantized. float32, bool and uint8 are
                                     not copied, whichever dimension is contiguous
    bit_width : int, 1 to 8
    packing : {"column", "row"}      for the left or the right side of a product
    low, high : float or (num_lines,) float32
                                     range that values are clamped to; None: smallest and largest value
    rounding : {"floor", "nearest"}  see this module; "nearest" keeps `low` exact, as zeros need
    is_per_line : bool               a range per row (packed by column) or column (packed by row)
    line_padding : {PAD8, PAD128}

    Raises KernelError for codes that don't fit, non-finite values, an empty or infinite range, or an unknown width,
    packing or rounding.

    Reference: QGTC, Eq. (2) and Sections 4.2 and 5.
    """
    if packing not in PACKINGS:
        raise KernelError(f"packing is {packing!r}; expected one of {', '.join(PACKINGS)}")
    if matrix.ndim != 2:
        raise KernelError(f"a BitTensor is a matrix, found shape {tuple(matrix.shape)}")
    is_turned = not matrix.is_contiguous() and matrix.t().is_contiguous()
    source = matrix.detach().t() if is_turned else matrix.detach().contiguous()
    is_by_column = (packing == "row") != is_turned
    if not source.is_floating_point():
        return BitTensor(pack_codes(_codes_of(source, bit_width), bit_width, is_by_column, line_padding), packing)
    values = source.float()
    codes = code_range(values, bit_width, low, high, rounding, (0 if is_by_column else 1) if is_per_line else None)
    lines = pack_values(values, codes, is_by_column, line_padding)
    return BitTensor(lines, packing, codes.step, zero_point_of(codes))


def to_val(bits: BitTensor, bit_width: int | None = None) -> torch.Tensor:
    """Return the matrix of a BitTensor; see `BitTensor.to_val`."""
    return bits.to_val(bit_width)


def of_codes(lines: BitLines, packing: str, codes: CodeRange) -> BitTensor:
    device = lines.words.device
    step, low = (torch.tensor([value], dtype=torch.float32, device=device) for value in (codes.step, codes.low))
    return BitTensor(lines, packing, step, zero_point_of(CodeRange(codes.bit_width, low, step, codes.offset)))


def _codes_of(matrix: torch.Tensor, bit_width: int) -> torch.Tensor:
    if matrix.dtype == torch.bool:
        return matrix.view(torch.uint8)
    if matrix.numel() and 1 <= bit_width <= 8:
        low, high = (int(value) for value in torch.aminmax(matrix))
        if low < 0 or high >= 1 << bit_width:
            raise KernelError(f"codes of {bit_width} bits lie in 0 to {(1 << bit_width) - 1}, "
                              f"found {low if low < 0 else high}; quantize the matrix first")
    return matrix.to(torch.uint8)


def code_range(values: torch.Tensor, bit_width: int, low: torch.Tensor | float | None,
               high: torch.Tensor | float | None, rounding: str, line_axis: int | None) -> CodeRange:
    """Return the steps and lows by which (rows, columns) float32 values become codes; see `to_bit`.

    line_axis is None for one range of all values, else 0 or 1 for one per line along this axis.
    """
    check_bit_width(bit_width)
    found_low, found_high = _extremes(values, line_axis)
    if not bool(torch.isfinite(found_low).all() and torch.isfinite(found_high).all()):
        raise KernelError("a matrix to quantize holds NaN or infinity; expected finite values")
    low, high = found_low if low is None else low, found_high if high is None else high
    step, low = step_of(low, high, bit_width, rounding)
    lows, steps = (part.contiguous() for part in torch.broadcast_tensors(low, step))
    return CodeRange(bit_width, lows, steps, OFFSETS[rounding])


def step_of(low: torch.Tensor | float, high: torch.Tensor | float, bit_width: int,
            rounding: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return step and low as float32 vectors; KernelError for a bad range or an unknown rounding."""
    if rounding not in OFFSETS:
        raise KernelError(f"rounding is {rounding!r}; expected one of {', '.join(OFFSETS)}")
    low, high = (torch.as_tensor(end, dtype=torch.float32).detach().reshape(-1) for end in (low, high))
    span = high.double() - low.double()
    step = (span / (2**bit_width - (rounding == "nearest"))).float()
    if not bool(torch.isfinite(low).all() and torch.isfinite(step).all() and (span >= 0).all()):
        raise KernelError(f"a range to quantize runs from {low.min().item():g} to {high.max().item():g}; "
                          "expected finite ends in that order")
    return step.clamp(min=SMALLEST_STEP), low


def zero_point_of(codes: CodeRange) -> torch.Tensor:
    return codes.low + (0.5 - codes.offset) * codes.step


def _extremes(values: torch.Tensor, line_axis: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    if values.numel() == 0:
        num_lines = 1 if line_axis is None else max(1, values.shape[1 - line_axis])
        return values.new_zeros(num_lines), values.new_zeros(num_lines)
    if line_axis is None:
        return tuple(end.reshape(1) for end in torch.aminmax(values))
    return torch.aminmax(values, dim=line_axis)
