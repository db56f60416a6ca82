"""Ranges, steps and zero points that turn real values into codes and back.

Rounding "floor" is QGTC's Eq. (2): step = (high - low) / 2^b, code = floor((value - low) / step), clamped. The zero
point is the middle of the lowest bin, low + step / 2: a value is within step / 2 of its code's value. Rounding
"nearest" has step = (high - low) / (2^b - 1), code = round((value - low) / step) and zero point low, so `low` itself,
such as the zeros of a ReLU, comes back exactly.
"""

from __future__ import annotations

import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import CodeRange, check_bit_width

OFFSETS = {"floor": 0.0, "nearest": 0.5}
SMALLEST_STEP = torch.finfo(torch.float32).tiny    # a constant line has no range


def code_range(values: torch.Tensor, bit_width: int, low: torch.Tensor | float | None,
               high: torch.Tensor | float | None, rounding: str, line_axis: int | None) -> CodeRange:
    """Return steps and lows of a float32 matrix: one for all, or one per line along `line_axis` (0 or 1).

    low, high and rounding are as in `hpcgnn.lowbit.to_bit`. Raises KernelError for non-finite values or a bad range.
    """
    check_bit_width(bit_width)
    found_low, found_high = _extremes(values, line_axis)
    if not bool(torch.isfinite(found_low).all() and torch.isfinite(found_high).all()):
        raise KernelError("a matrix to quantize holds NaN or infinity; expected finite values")
    low, high = found_low if low is None else low, found_high if high is None else high
    step, low = step_of(low, high, bit_width, rounding)
    return CodeRange(bit_width, *(part.contiguous() for part in torch.broadcast_tensors(low, step)), OFFSETS[rounding])


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
