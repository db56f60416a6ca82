"""Fake quantization: values rounded to what small integers stand for, with gradients of values, steps and widths.

What a step or a width belongs to, an in-degree, a column or a layer, is not known here.
"""

from __future__ import annotations

import math

import numpy as np
import torch


class _FakeQuantize(torch.autograd.Function):
    """Keeps the values; backward divides again."""

    @staticmethod
    def forward(ctx, values, step, bit_width, is_signed, local_weight):
        ctx.save_for_backward(values, step, bit_width)
        ctx.arguments = is_signed, local_weight
        return codes_of(values, step, largest_code(bit_width, is_signed)).mul_(step)

    @staticmethod
    def backward(ctx, gradient):
        values, step, bit_width = ctx.saved_tensors
        is_signed, local_weight = ctx.arguments
        max_code = largest_code(bit_width, is_signed)
        ratio = values / step
        is_clipped = ratio.abs() > max_code
        of_values = gradient.masked_fill(is_clipped, 0.0) if ctx.needs_input_grad[0] else None
        codes = codes_of(values, step, max_code)
        if local_weight is not None:
            gradient = torch.sign(codes * step - values).mul_(local_weight)
        error = codes - ratio.masked_fill_(is_clipped, 0.0)
        of_step = (gradient * error).sum_to_size(step.shape)
        of_width = None
        if ctx.needs_input_grad[2]:
            # The derivative of max_code by the width, where a value takes it.
            clipped = (gradient * torch.sign(values)).masked_fill_(~is_clipped, 0.0)
            slope = step * (max_code + 1) * math.log(2.0)
            of_width = (clipped.sum_to_size(step.shape) * slope).sum_to_size(bit_width.shape)
        return of_values, of_step, of_width, None, None


def fake_quantize(values: torch.Tensor, step: torch.Tensor, bit_width: torch.Tensor, is_signed: bool,
                  local_weight: float | None = None) -> torch.Tensor:
    """step * sign(x) * min(floor(|x| / step + 0.5), max_code), max_code = 2**(bit_width - is_signed) - 1.

    Gradients are straight-through: of a value 1 where it is not clipped, else 0; of its step code - x / step where it
    is not clipped, else sign(x) * max_code; of its width 0 where it is not clipped, else
    sign(x) * step * 2**(bit_width - is_signed) * ln 2.

    Parameters
    ----------
    values : (n, dim) float32
    step : (n, 1) or (1, dim) float32, above 0
    bit_width : float32 of whole numbers, of the step's shape or (1, 1)
    is_signed : bool                whether one of the bits is a sign; without it no value is below 0
    local_weight : float or None
        where given, steps and widths get the gradient of local_weight * sum of |quantized - x| instead of the loss's

    Returns
    -------
    (n, dim) float32

    Reference: Zhu et al., HPCA 2024, Eq. (2); Zhu et al., ICLR 2023 (A2Q), for the local gradient.
    """
    return _FakeQuantize.apply(values, step, bit_width, is_signed, local_weight)


def largest_code(bit_width: torch.Tensor, is_signed: bool) -> torch.Tensor:
    """2**(bit_width - is_signed) - 1, as float32."""
    return torch.exp2(bit_width - int(is_signed)).round_() - 1


def codes_of(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    """sign(x) * min(floor(|x| / step + 0.5), max_code) as float32; NaN stays NaN."""
    codes = (values.abs() / step).add_(0.5).floor_()
    return torch.minimum(codes, max_code, out=codes).mul_(torch.sign(values))


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, entry):
        ctx.entry, ctx.num_entries = entry, len(table)
        return table[entry]

    @staticmethod
    def backward(ctx, gradient):
        # In float64 and in order: torch's own scatter adds in whatever order its threads come.
        sums = np.bincount(ctx.entry.numpy(), gradient.double().numpy(), ctx.num_entries)
        return torch.from_numpy(sums).to(gradient.dtype), None


def look_up(table: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
    """table[entry] for table (num_entries,) and entry (n,) int64; its backward does not depend on threads."""
    return _LookUp.apply(table, entry)


def round_through(width: torch.Tensor) -> torch.Tensor:
    """The nearest whole number, with the gradient of the identity."""
    return width + (width.round() - width).detach()
