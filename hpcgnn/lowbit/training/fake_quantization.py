"""Fake quantization: values rounded to multiples of a step, with gradients for values, steps and widths."""

from __future__ import annotations

import math

import numpy as np
import torch

from hpcgnn.ops.fake_quantization import quantize_values, quantize_values_backward


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, step, bit_width, is_signed, local_weight):
        values = values.contiguous()
        ctx.save_for_backward(values, step, bit_width)
        ctx.arguments = is_signed, local_weight
        return quantize_values(values, _by_row_or_column(step, values), largest_code(bit_width, is_signed))

    @staticmethod
    def backward(ctx, gradient):
        values, step, bit_width = ctx.saved_tensors
        is_signed, local_weight = ctx.arguments
        max_code = largest_code(bit_width, is_signed)
        # Only the values were kept; backward divides again.
        found = quantize_values_backward(values, _by_row_or_column(step, values), max_code, gradient.contiguous(),
                                         local_weight, ctx.needs_input_grad[0])
        of_width = None
        if ctx.needs_input_grad[2]:
            # For clipped values, the derivative of step * max_code by the width.
            slope = step * (max_code + 1) * math.log(2.0)
            of_width = (found.clipped * slope).sum_to_size(bit_width.shape)
        return found.of_values, found.of_step.sum_to_size(step.shape), of_width, None, None


def _by_row_or_column(step: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return step.expand(len(values), 1) if step.numel() == 1 else step


def fake_quantize(values: torch.Tensor, step: torch.Tensor, bit_width: torch.Tensor, is_signed: bool,
                  local_weight: float | None = None) -> torch.Tensor:
    """Return step * sign(x) * min(floor(|x| / step + 0.5), max_code), max_code = 2**(bit_width - is_signed) - 1.

    Gradients are straight-through: 1 for a value if not clipped, else 0; code - x / step for its step if not clipped,
    else sign(x) * max_code; 0 for its width if not clipped, else sign(x) * step * 2**(bit_width - is_signed) * ln 2.

    values : (n, dim) float32
    step : (n, 1), (1, dim) or (1, 1) float32, above 0
    bit_width : (n, 1) or (1, 1) float32 of whole numbers; without gradient if steps are by column
    is_signed : bool                one bit is a sign; without it no value is negative
    local_weight : float or None    steps and widths get the gradient of local_weight * sum of |quantized - x| instead

    Reference: MEGA, Eq. (2); Zhu et al., ICLR 2023 (A2Q), for the local gradient.
    """
    return _FakeQuantize.apply(values, step, bit_width, is_signed, local_weight)


def largest_code(bit_width: torch.Tensor, is_signed: bool) -> torch.Tensor:
    return torch.exp2(bit_width - int(is_signed)).round_() - 1


def codes_of(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    codes = (values.abs() / step).add_(0.5).floor_()
    return torch.minimum(codes, max_code, out=codes).mul_(torch.sign(values))


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, entry):
        ctx.entry, ctx.num_entries = entry, len(table)
        return table[entry]

    @staticmethod
    def backward(ctx, gradient):
        # In float64 and a fixed order: torch's scatter adds in the order of its threads. On a device, index_put_ sorts
        # before it adds.
        if gradient.device.type == "cpu":
            sums = torch.from_numpy(np.bincount(ctx.entry.numpy(), gradient.double().numpy(), ctx.num_entries))
        else:
            sums = torch.zeros(ctx.num_entries, dtype=torch.float64, device=gradient.device)
            sums.index_put_((ctx.entry,), gradient.double(), accumulate=True)
        return sums.to(gradient.dtype), None


def look_up(table: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
    """Return table[entry] for table (num_entries,) and entry (n,) int64; backward is deterministic."""
    return _LookUp.apply(table, entry)


def round_through(width: torch.Tensor) -> torch.Tensor:
    return width + (width.round() - width).detach()
