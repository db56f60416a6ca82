"""One step of Adam over flat buffers of all weights, and in the same pass: is all finite, and which weights are these.

The contract is stated here; the host's kernel, or torch's operations on a device, compute it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.dispatch import backend_of

MEAN_DECAY, SQUARE_DECAY = 0.9, 0.999
EPSILON = 1e-8
LOW_32 = 0xFFFFFFFF


@dataclass(frozen=True)
class StepCheck:
    """Holds what a step found in the gradients and left in weights and moments.

    Attributes
    ----------
    largest_gradient : float      magnitude; infinite or NaN where a gradient is
    largest_result : float        of all weights and moments
    hash : int                    of the weights' bits, below 2**64; the same for any number of threads and on every
                                  SIMD level, another one wherever a single weight has other bits
    """

    largest_gradient: float = 0.0
    largest_result: float = 0.0
    hash: int = 0

    @property
    def has_finite_gradients(self) -> bool:
        return math.isfinite(self.largest_gradient)

    @property
    def has_finite_results(self) -> bool:
        return math.isfinite(self.largest_result)


def worst_of(checks: Sequence[StepCheck]) -> StepCheck:
    """Return the largest magnitudes of several checks, NaN above all, and the hash of the last one."""
    largest = np.array([(check.largest_gradient, check.largest_result) for check in checks]).max(axis=0)
    return StepCheck(*largest.tolist(), checks[-1].hash)


@dataclass(frozen=True)
class AdamFactors:
    """The numbers of one step; names as in the formulas of `adam_step`."""

    mean_weight: float
    square_decay: float
    square_weight: float
    unbiased: float
    epsilon: float
    rate: float

    @classmethod
    def of_step(cls, number: int) -> AdamFactors:
        """Compute the numbers of step `number`, counted from 1."""
        return cls(1 - MEAN_DECAY, SQUARE_DECAY, 1 - SQUARE_DECAY, math.sqrt(1 - SQUARE_DECAY ** number), EPSILON,
                   -1 / (1 - MEAN_DECAY ** number))


def adam_step(weights: torch.Tensor, gradient: torch.Tensor, lr: torch.Tensor, decay: torch.Tensor, mean: torch.Tensor,
              square: torch.Tensor, number: int) -> StepCheck:
    """Move weights against their gradient, with L2 decay, and both moments, all in place:

    slope = gradient + decay weights, mean += mean_weight (slope - mean), square = square_decay square + square_weight
    slope², weights += rate lr mean / (√square / unbiased + epsilon).

    Parameters
    ----------
    weights, gradient, lr, decay, mean, square : (n,) float32, contiguous, on one device
    number : int      of the step, from 1

    Raises
    ------
    KernelError      buffers of another type or length

    Reference: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1.
    """
    for tensor in (weights, gradient, lr, decay, mean, square):
        if tensor.dtype != torch.float32 or tensor.shape != weights.shape or not tensor.is_contiguous():
            raise KernelError(f"Adam needs buffers of {weights.numel()} contiguous float32, found "
                              f"{tuple(tensor.shape)} {tensor.dtype}")
    return backend_of("adam", weights).adam_step(weights, gradient, lr, decay, mean, square,
                                                 AdamFactors.of_step(number))


def check_of(gradient: torch.Tensor, weights: torch.Tensor, *moments: torch.Tensor) -> StepCheck:
    """Return what a step of any optimizer found and left, by torch's operations and one reduction; `adam_step` on the
    host gets the same from its own pass.

    Parameters
    ----------
    gradient, weights, moments : (n,) float32, contiguous, on one device
    """
    if len(weights) == 0:
        return StepCheck()
    # The largest magnitudes; NaN is larger than all.
    largest = torch.stack([values.abs().amax() for values in (gradient, weights, *moments)])
    found = torch.cat([largest.double().view(torch.int64), _hash(weights)]).cpu()
    magnitudes, (low, high) = found[:-2].view(torch.float64), found[-2:].tolist()
    return StepCheck(float(magnitudes[0]), float(magnitudes[1:].amax()), (high & LOW_32) << 32 | (low & LOW_32))


def _hash(weights: torch.Tensor) -> torch.Tensor:
    """Return both halves of the hash in the low 32 bits, which are right although products wrap modulo 2**64."""
    index = torch.arange(len(weights), dtype=torch.int64, device=weights.device)
    bits = weights.view(torch.int32).to(torch.int64) & LOW_32
    mixed = bits ^ (index * 0x9E3779B1 & LOW_32)
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & LOW_32
    mixed = mixed ^ (mixed >> 13)
    second = (mixed * 0xC2B2AE35) & LOW_32
    return torch.stack([mixed.sum(), (second ^ (second >> 16)).sum()])
