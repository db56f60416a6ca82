"""Device side of `hpcgnn.ops.adam`: torch's elementwise operations and one reduction, which the host reads once a step.

The host waits for the device after every epoch anyway, to read the loss.
"""

from __future__ import annotations

import torch

from hpcgnn.ops.adam import AdamFactors, StepCheck, check_of


def adam_step(weights: torch.Tensor, gradient: torch.Tensor, lr: torch.Tensor, decay: torch.Tensor, mean: torch.Tensor,
              square: torch.Tensor, factors: AdamFactors) -> StepCheck:
    """Step as on the host, but for the rounding of products that are added; equal weights have the host's hash."""
    slope = torch.addcmul(gradient, decay, weights)
    mean.lerp_(slope, factors.mean_weight)
    square.mul_(factors.square_decay).addcmul_(slope, slope, value=factors.square_weight)
    change = mean / (square.sqrt().div_(factors.unbiased).add_(factors.epsilon))
    weights.addcmul_(lr, change, value=factors.rate)
    return check_of(gradient, weights, mean, square)
