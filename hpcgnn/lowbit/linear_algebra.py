"""Products of two BitTensors: to integers, to real values, and to the codes that the next product takes.

With a = za + sa * A and b = zb + sb * B, where A and B are codes, the real product over K columns follows exactly from
the integer one and from sums of codes: sum a b = sa sb (sum A B) + za sb (sum B) + sa zb (sum A) + K za zb.
`hpcgnn.lowbit.tiles` has products with a sparse left side.
"""

from __future__ import annotations

from typing import Protocol

import torch

from hpcgnn.errors import KernelError
from hpcgnn.lowbit.bit_tensor import OFFSETS, PACKINGS, BitTensor, of_codes, step_of, to_bit
from hpcgnn.ops.bit_gemm import CodeRange, LineValues, Rescaling, multiply_bits


def bit_mm_to_int(a: BitTensor, b: BitTensor) -> torch.Tensor:
    """Multiply codes by codes.

    Parameters
    ----------
    a : (M, K) BitTensor packed by column, of 1 to 8 bits
    b : (K, N) BitTensor packed by row, of 1 to 8 bits

    Returns (M, N) int32, exact. Raises KernelError for packings or lengths that don't fit, or if
    K (2^s - 1) (2^t - 1), the largest sum for codes of s and t bits, passes 2^31 - 1.

    Reference: QGTC, Eq. (5)-(7) and Section 5.
    """
    _check_packings(a, b)
    return multiply_bits(a.lines, b.lines)


def bit_mm_to_float(a: BitTensor, b: BitTensor, *, gain: torch.Tensor | None = None,
                    bias: torch.Tensor | None = None, relu: bool = False) -> torch.Tensor:
    """Multiply the values of the codes in full precision, as a last layer needs.

    Parameters
    ----------
    a, b                             as in `bit_mm_to_int`
    gain, bias : (N,) float32        gain * product + bias, a folded batch norm; None means gain 1 or bias 0
    relu : bool                      then max(0, .)

    Returns (M, N) float32, equal to a.to_val() @ b.to_val() up to float32 rounding. Raises KernelError as
    `bit_mm_to_int`, or for a gain or bias of another shape.
    """
    _check_packings(a, b)
    return multiply_bits(a.lines, b.lines, rescaling_of(a, b, gain, bias, relu))


def bit_mm_to_bit(a: BitTensor, b: BitTensor, bit_width: int, packing: str = "column", *, low: float | None = None,
                  high: float | None = None, rounding: str = "floor", gain: torch.Tensor | None = None,
                  bias: torch.Tensor | None = None, relu: bool = False) -> BitTensor:
    """Multiply as `bit_mm_to_float`, and quantize and pack for the next product while the sums are in registers.

    Parameters
    ----------
    bit_width : int, 1 to 8
    packing : {"column", "row"}      the next product's left or right side
    low, high : float                range of the values; if one is None, the product is first computed in full
                                     precision, and that limit is taken from it
    rounding                         see `to_bit`

    Returns an (M, N) BitTensor. Raises KernelError as `bit_mm_to_float` and `to_bit`.

    Reference: QGTC, Section 4.5.
    """
    _check_packings(a, b)
    if packing not in PACKINGS:
        raise KernelError(f"packing is {packing!r}; expected one of {', '.join(PACKINGS)}")
    if low is None or high is None:
        values = bit_mm_to_float(a, b, gain=gain, bias=bias, relu=relu)
        return to_bit(values, bit_width, packing, low=low, high=high, rounding=rounding)
    codes = fixed_range(bit_width, low, high, rounding)
    # For a result packed by row, compute the transposed product: its rows are the result's columns.
    left, right = (a, b) if packing == "column" else (b, a)
    rescaling = rescaling_of(left, right, gain, bias, relu, is_by_row=packing == "row")
    return of_codes(multiply_bits(left.lines, right.lines, rescaling, codes), packing, codes)


def _check_packings(a: BitTensor, b: BitTensor) -> None:
    if a.packing != "column" or b.packing != "row":
        raise KernelError(f"a product takes a left side packed by 'column' and a right side packed by 'row', "
                          f"found {a.packing!r} and {b.packing!r}")


class ProductSide(Protocol):
    @property
    def num_lines(self) -> int: ...

    @property
    def step(self) -> torch.Tensor | None: ...

    @property
    def zero_point(self) -> torch.Tensor | None: ...

    @property
    def code_sums(self) -> torch.Tensor: ...

    @property
    def device(self) -> torch.device: ...


def rescaling_of(left: ProductSide, right: ProductSide, gain: torch.Tensor | None, bias: torch.Tensor | None,
                 relu: bool, is_by_row: bool = False) -> Rescaling:
    """How the integer sums of left times right become values.

    gain and bias have one float32 per column of the product, or per row if `is_by_row`.
    """
    num_scaled = left.num_lines if is_by_row else right.num_lines
    for name, vector in (("gain", gain), ("bias", bias)):
        if vector is not None and (vector.dtype != torch.float32 or vector.shape != (num_scaled,)):
            raise KernelError(f"a product of {num_scaled} columns needs a {name} of {num_scaled} float32 values, "
                              f"found {vector.dtype} of shape {tuple(vector.shape)}")
    return Rescaling(_line_values(left, right), _line_values(right, left), gain, bias, is_by_row, relu)


def fixed_range(bit_width: int, low: float, high: float, rounding: str) -> CodeRange:
    step, least = step_of(low, high, bit_width, rounding)
    if len(step) != 1:
        raise KernelError(f"the codes of a product have one `low` and one `high`, found {len(step)} of each")
    return CodeRange(bit_width, least.item(), step.item(), OFFSETS[rounding])


def _line_values(side: ProductSide, other: ProductSide) -> LineValues:
    device = side.device
    step = torch.ones(1, device=device) if side.step is None else side.step
    zero_point = torch.zeros(1, device=device) if side.zero_point is None else side.zero_point
    # Sums of codes matter only if the other side has a zero point.
    sums = torch.zeros(1, device=device) if other.zero_point is None else step * side.code_sums
    return LineValues(*(part.expand(side.num_lines).contiguous() for part in (step, zero_point, sums)))
