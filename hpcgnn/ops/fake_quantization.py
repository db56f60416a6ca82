"""Rounds float32 values to multiples of a step, and passes gradients straight through the rounding."""

from __future__ import annotations

from typing import NamedTuple

import torch

from hpcgnn._ext import fake_quantization as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dispatch import by_device, check_rows

LARGEST_CODE = 255


class CodeGradients(NamedTuple):
    """Gradients of quantized values.

    of_values : (n, dim) float32 or None      the upstream gradient where a value is not clipped, else 0
    of_step : float32, in the step's shape    sum of gradient * (signed code - x / step where x is not clipped)
    clipped : (n, 1) float32 or None          sum of gradient * sign(x) over clipped x; None if each column has a step
    """

    of_values: torch.Tensor | None
    of_step: torch.Tensor
    clipped: torch.Tensor | None


def quantize_values(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    """step * sign(x) * min(floor(|x| / step + 0.5), max_code); NaN stays NaN.

    values is (n, dim) float32, step (n, 1) or (1, dim) above 0, max_code (n, 1) or (1, 1) of whole numbers up to 255.

    Reference: MEGA, Eq. (2).
    """
    _check(values, step, max_code)
    return _quantize_values.on(values.device)(values, step, max_code)


def quantize_values_backward(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor, gradient: torch.Tensor,
                             local_weight: float | None = None, needs_values: bool = True) -> CodeGradients:
    """Gradients of `quantize_values` in one pass; x is clipped where |x| / step > max_code.

    With a local_weight, of_step and clipped are gradients of local_weight * sum of |quantized - x| instead.
    """
    _check(values, step, max_code)
    check_rows(gradient, len(values), "fake quantization", torch.float32)
    if gradient.shape != values.shape:
        raise KernelError(f"values of shape {tuple(values.shape)} were given a gradient of {tuple(gradient.shape)}")
    return _quantize_values_backward.on(values.device)(values, step, max_code, gradient, local_weight,
                                                       needs_values)


def _check(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> None:
    check_rows(values, len(values), "fake quantization", torch.float32)
    by_row, by_column = (len(values), 1), (1, values.shape[1])
    if step.dtype != torch.float32 or tuple(step.shape) not in (by_row, by_column):
        raise KernelError(f"{len(values)} rows of {values.shape[1]} values need a float32 step of shape {by_row} or "
                          f"{by_column}, found {step.dtype} of shape {tuple(step.shape)}")
    if max_code.dtype != torch.float32 or tuple(max_code.shape) not in (by_row, (1, 1)):
        raise KernelError(f"{len(values)} rows need a float32 max_code of shape {by_row} or (1, 1), "
                          f"found {max_code.dtype} of shape {tuple(max_code.shape)}")


@by_device("pointwise")
def _quantize_values(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    out = empty(tuple(values.shape))
    kernels.fake_quantize(values.detach().numpy(), *_scales(values, step, max_code), out.numpy())
    return out


@by_device("pointwise")
def _quantize_values_backward(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor, gradient: torch.Tensor,
                              local_weight: float | None, needs_values: bool) -> CodeGradients:
    of_values = empty(tuple(values.shape)) if needs_values else None
    of_step = torch.empty(step.shape)
    # If each row has its own step, clipped values are summed per row.
    clipped = None if _is_by_column(values, step) else torch.empty(len(values), 1)
    kernels.fake_quantize_backward(
        values.detach().numpy(), gradient.detach().numpy(), *_scales(values, step, max_code), local_weight is not None,
        local_weight or 0.0, None if of_values is None else of_values.numpy(), of_step.reshape(-1).numpy(),
        None if clipped is None else clipped.reshape(-1).numpy())
    return CodeGradients(of_values, of_step, clipped)


def _is_by_column(values: torch.Tensor, step: torch.Tensor) -> bool:
    return tuple(step.shape) != (len(values), 1)


def _scales(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> tuple:
    flat = (part.detach().reshape(-1).contiguous().numpy() for part in (step, max_code))
    return *flat, _is_by_column(values, step)
