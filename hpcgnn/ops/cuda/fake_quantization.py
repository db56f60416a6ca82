"""Device side of `hpcgnn.ops.fake_quantization`, by torch's own kernels. Contracts are already checked."""

from __future__ import annotations

import torch

from hpcgnn.ops.fake_quantization import CodeGradients


def quantize_values(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    """Return a new tensor of rounded values."""
    return _signed_codes(values, step, max_code).mul_(step)


def quantize_values_backward(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor, gradient: torch.Tensor,
                             local_weight: float | None, needs_values: bool) -> CodeGradients:
    """Return all gradients; torch reduces in an order that depends on the shape alone."""
    ratio, codes = values / step, _signed_codes(values, step, max_code)
    is_clipped = ratio.abs() > max_code
    of_values = gradient.masked_fill(is_clipped, 0.0) if needs_values else None
    if local_weight is not None:
        gradient = torch.sign(codes * step - values).mul_(local_weight)
    of_step = (gradient * (codes - ratio.masked_fill_(is_clipped, 0.0))).sum_to_size(step.shape)
    if tuple(step.shape) != (len(values), 1):
        return CodeGradients(of_values, of_step, None)
    clipped = (gradient * torch.sign(values)).masked_fill_(~is_clipped, 0.0).sum(dim=1, keepdim=True)
    return CodeGradients(of_values, of_step, clipped)


def _signed_codes(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    """Return sign(x) * min(floor(|x| / step + 0.5), max_code); NaN stays NaN."""
    codes = (values.abs() / step).add_(0.5).floor_()
    return torch.minimum(codes, max_code, out=codes).mul_(torch.sign(values))
