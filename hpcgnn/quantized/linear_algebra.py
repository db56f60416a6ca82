"""Products of two BitTensors: to integers, to real values, and to the codes that the next product takes.

Sparse left sides are in `hpcgnn.quantized.tiles`.
"""

from __future__ import annotations

import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import multiply_bits
from hpcgnn.quantized.bit_tensor import PACKINGS, BitTensor, of_codes, to_bit
from hpcgnn.quantized.rescale import fixed_range, rescaling_of


def bit_mm_to_int(a: BitTensor, b: BitTensor) -> torch.Tensor:
    """Multiply codes by codes.

    Parameters
    ----------
    a : (M, K) BitTensor packed by column, of 1 to 8 bits
    b : (K, N) BitTensor packed by row, of 1 to 8 bits

    Returns
    -------
    (M, N) int32, exact

    Raises
    ------
    KernelError      packings or lengths that don't fit, or sums that could pass 2^31 - 1: K (2^s - 1) (2^t - 1)

    Reference: QGTC, Eq. (5)-(7) and Section 5.
    """
    _check_packings(a, b)
    return multiply_bits(a.lines, b.lines)


def bit_mm_to_float(a: BitTensor, b: BitTensor, *, gain: torch.Tensor | None = None,
                    bias: torch.Tensor | None = None, relu: bool = False) -> torch.Tensor:
    """Multiply the values that the codes stand for, in full precision, as a last layer needs.

    Parameters
    ----------
    a, b                             as in `bit_mm_to_int`
    gain, bias : (N,) float32        gain * product + bias, a folded batch norm; None is 1 and 0
    relu : bool                      then max(0, .)

    Returns
    -------
    (M, N) float32, equal to a.to_val() @ b.to_val() but for the rounding of float32

    Raises
    ------
    KernelError                      as `bit_mm_to_int`, or a gain or bias of another shape
    """
    _check_packings(a, b)
    return multiply_bits(a.lines, b.lines, rescaling_of(a, b, gain, bias, relu))


def bit_mm_to_bit(a: BitTensor, b: BitTensor, bit_width: int, packing: str = "column", *, low: float | None = None,
                  high: float | None = None, rounding: str = "floor", gain: torch.Tensor | None = None,
                  bias: torch.Tensor | None = None, relu: bool = False) -> BitTensor:
    """Multiply as `bit_mm_to_float`; quantize and pack for the next product while the sums are at hand.

    Parameters
    ----------
    bit_width : int, 1 to 8
    packing : {"column", "row"}      the next product's left or right side
    low, high : float                range of the values. Without both, the product is made in full precision first,
                                     and its own range is taken
    rounding                         see `to_bit`

    Returns
    -------
    (M, N) BitTensor

    Raises
    ------
    KernelError                      as `bit_mm_to_float` and `to_bit`

    Reference: QGTC, Section 4.5.
    """
    _check_packings(a, b)
    if packing not in PACKINGS:
        raise KernelError(f"packing is {packing!r}; expected one of {', '.join(PACKINGS)}")
    if low is None or high is None:
        values = bit_mm_to_float(a, b, gain=gain, bias=bias, relu=relu)
        return to_bit(values, bit_width, packing, low=low, high=high, rounding=rounding)
    codes = fixed_range(bit_width, low, high, rounding)
    # Packed by row, the transposed product is computed: its lines are the columns.
    left, right = (a, b) if packing == "column" else (b, a)
    rescaling = rescaling_of(left, right, gain, bias, relu, is_by_row=packing == "row")
    return of_codes(multiply_bits(left.lines, right.lines, rescaling, codes), packing, codes)


def _check_packings(a: BitTensor, b: BitTensor) -> None:
    if a.packing != "column" or b.packing != "row":
        raise KernelError(f"a product takes a left side packed by 'column' and a right side packed by 'row', "
                          f"found {a.packing!r} and {b.packing!r}")
