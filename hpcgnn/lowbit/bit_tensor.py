"""BitTensor: a matrix of 1- to 8-bit codes as stacked planes of bits, with the scale that turns codes into values.

No product is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from hpcgnn.errors import KernelError
from hpcgnn.lowbit.scale import code_range, zero_point_of
from hpcgnn.ops.bit_gemm import (
    PAD8,
    STEP_BITS,
    WORD_BITS,
    BitLines,
    CodeRange,
    pack_codes,
    pack_values,
    sum_lines,
    unpack_codes,
)

PACKINGS = ("column", "row")


@dataclass(frozen=True)
class BitTensor:
    """A matrix of codes, packed for one side of a product.

    Packed by "column", 32 neighbouring columns of a row share a word: the left side of a product. Packed by "row", 32
    neighbouring rows of a column do: the right side. Either way a line, a row or a column, lies contiguously in each
    plane along the side that is contracted.

    Attributes
    ----------
    lines : BitLines                 the words, see there
    packing : {"column", "row"}
    step, zero_point : (1,) or (num_lines,) float32, or None
                                     a code stands for zero_point + step * code; None: the codes are the values
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
        """Return a BitTensor over words that exist already, without a copy; see `BitLines` for their layout.

        Raises
        ------
        KernelError      words of another type or shape, or with ones where padding must be
        """
        num_lines, length = shape if packing == "column" else shape[::-1]
        made = cls(BitLines(words, num_lines, length), packing, step, zero_point)
        bit, word = (torch.arange(number, device=words.device) for number in (WORD_BITS, words.shape[2]))
        bits = bit + WORD_BITS * word[:, None]
        is_padding = (bits[-STEP_BITS // WORD_BITS:] >= length).to(torch.int64)
        mask = (is_padding << bit).sum(dim=1)
        if (words[:, :, -len(mask):].to(torch.int64) & mask).any():
            raise KernelError(f"lines of {length} codes have ones past their end; their padding must be zero")
        return made

    @property
    def words(self) -> torch.Tensor:
        """Return (bit_width, padded lines, words a line) int32, the memory itself."""
        return self.lines.words

    @property
    def device(self) -> torch.device:
        """Return the device that the words lie on."""
        return self.words.device

    @property
    def bit_width(self) -> int:
        return self.lines.bit_width

    @property
    def num_lines(self) -> int:
        return self.lines.num_lines

    @property
    def shape(self) -> tuple[int, int]:
        """Return rows and columns of the matrix, without padding."""
        shape = self.lines.num_lines, self.lines.length
        return shape if self.packing == "column" else shape[::-1]

    @property
    def nbytes(self) -> int:
        """Count the bytes of the planes."""
        return self.words.nbytes

    @cached_property
    def code_sums(self) -> torch.Tensor:
        """Sum of the codes of each line, (num_lines,) int64."""
        return sum_lines(self.lines)

    def to_codes(self) -> torch.Tensor:
        """Return the codes, (rows, columns) uint8; a transposed view of contiguous memory where packed by row."""
        codes = unpack_codes(self.lines)
        return codes if self.packing == "column" else codes.t()

    def to_val(self, bit_width: int | None = None) -> torch.Tensor:
        """Return the matrix that the codes stand for.

        Parameters
        ----------
        bit_width : int      as in QGTC's `to_val(nbits)`; where given it must be the tensor's own

        Returns
        -------
        (rows, columns) int32 codes where there is no scale, otherwise float32 zero_point + step * code

        Raises
        ------
        KernelError          bit_width is not the tensor's
        """
        if bit_width not in (None, self.bit_width):
            raise KernelError(f"a BitTensor of {self.bit_width} bits can't be read as one of {bit_width}")
        codes = self.to_codes()
        if self.step is None:
            return codes.to(torch.int32)
        shape = (-1, 1) if self.packing == "column" else (1, -1)
        return self.zero_point.view(shape) + self.step.view(shape) * codes


def to_bit(matrix: torch.Tensor, bit_width: int, packing: str = "column", *, low: torch.Tensor | float | None = None,
           high: torch.Tensor | float | None = None, rounding: str = "floor", is_per_line: bool = False,
           line_padding: int = PAD8) -> BitTensor:
    """Pack a matrix into planes of bits, and quantize it first where it holds real values.

    Parameters
    ----------
    matrix : (rows, columns)         integers or booleans are codes and are packed as they are; floats are quantized.
                                     float32, bool and uint8 are not copied, whichever side is contiguous
    bit_width : int, 1 to 8
    packing : {"column", "row"}      for the left or the right side of a product
    low, high : float or (num_lines,) float32
                                     range of the values, clamped to it; None is the smallest and largest value
    rounding : {"floor", "nearest"}  see `hpcgnn.lowbit.scale`; "nearest" keeps `low` exact, as zeros need
    is_per_line : bool               a range for each row (packed by column) or column (packed by row)
    line_padding : {PAD8, PAD128}

    Raises
    ------
    KernelError                      codes that don't fit, values that are not finite, an empty or infinite range, or
                                     a width, packing or rounding that does not exist

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
    """Return the matrix that a BitTensor stands for; see `BitTensor.to_val`."""
    return bits.to_val(bit_width)


def of_codes(lines: BitLines, packing: str, codes: CodeRange) -> BitTensor:
    """Return codes that a product left, with the scale that they were drawn with."""
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
