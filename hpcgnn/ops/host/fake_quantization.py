"""Host side of `hpcgnn.ops.fake_quantization`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import torch

from hpcgnn._ext import fake_quantization as kernels
from hpcgnn.ops.arena import empty
from hpcgnn.ops.fake_quantization import CodeGradients


def quantize_values(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    """Return a new tensor of rounded values."""
    out = empty(tuple(values.shape))
    kernels.fake_quantize(values.detach().numpy(), *_scales(values, step, max_code), out.numpy())
    return out


def quantize_values_backward(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor, gradient: torch.Tensor,
                             local_weight: float | None, needs_values: bool) -> CodeGradients:
    """Return all gradients in one pass over the values."""
    of_values = empty(tuple(values.shape)) if needs_values else None
    of_step = torch.empty(step.shape)
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
