"""This module builds the `hpcgnn.ops.bit_gemm.Rescaling` that turns integer sums of a product into real values.

With a = za + sa * A and b = zb + sb * B, where A and B are codes, the product over K columns follows exactly from the
integer one and the sums of codes: sum a b = sa sb (sum A B) + za sb (sum B) + sa zb (sum A) + K za zb.
"""

from __future__ import annotations

from typing import Protocol

import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import CodeRange, LineValues, Rescaling
from hpcgnn.quantized.scale import OFFSETS, step_of


class ProductSide(Protocol):
    """Stands for one side of a product, a BitTensor or a BitTiles."""

    num_lines: int
    step: torch.Tensor | None
    zero_point: torch.Tensor | None
    code_sums: torch.Tensor
    device: torch.device


def rescaling_of(left: ProductSide, right: ProductSide, gain: torch.Tensor | None, bias: torch.Tensor | None,
                 relu: bool, is_by_row: bool = False) -> Rescaling:
    """Return how sums of left times right become values; gain and bias are (columns,) float32, (rows,) if is_by_row.

    Raises
    ------
    KernelError      a gain or bias of another shape or type
    """
    num_scaled = left.num_lines if is_by_row else right.num_lines
    for name, vector in (("gain", gain), ("bias", bias)):
        if vector is not None and (vector.dtype != torch.float32 or vector.shape != (num_scaled,)):
            raise KernelError(f"a product of {num_scaled} columns needs a {name} of as many float32 values, "
                              f"found {vector.dtype} of shape {tuple(vector.shape)}")
    return Rescaling(_line_values(left, right), _line_values(right, left), gain, bias, is_by_row, relu)


def fixed_range(bit_width: int, low: float, high: float, rounding: str) -> CodeRange:
    """Return the codes of a range that is known beforehand."""
    step, low = step_of(low, high, bit_width, rounding)
    if len(step) != 1:
        raise KernelError(f"the codes of a product have one range, found {len(step)}")
    return CodeRange(bit_width, low.item(), step.item(), OFFSETS[rounding])


def _line_values(side: ProductSide, other: ProductSide) -> LineValues:
    device = side.device
    step = torch.ones(1, device=device) if side.step is None else side.step
    zero_point = torch.zeros(1, device=device) if side.zero_point is None else side.zero_point
    # Sums of codes matter only beside a zero point of the other side.
    sums = torch.zeros(1, device=device) if other.zero_point is None else step * side.code_sums
    return LineValues(*(part.expand(side.num_lines).contiguous() for part in (step, zero_point, sums)))
