"""One step of Adam over flat buffers of all weights; the same pass checks values and hashes the weights."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from hpcgnn._ext import adam as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.dispatch import by_device

MEAN_DECAY, SQUARE_DECAY = 0.9, 0.999
EPSILON = 1e-8
LOW_32 = 0xFFFFFFFF


@dataclass(frozen=True)
class StepCheck:
    """Checks of one step: the largest magnitudes of its gradients and of its results, and a hash of the new weights.

    Results are the new weights and moments. A magnitude is infinite or NaN if any value is. `hash` is below 2**64 and
    does not depend on threads or SIMD level.
    """

    largest_gradient: float = 0.0
    largest_result: float = 0.0
    hash: int = 0

    def read(self) -> StepCheck:
        """Return itself, which the host holds already; an `UnreadCheck` waits for the device."""
        return self

    @property
    def has_finite_gradients(self) -> bool:
        return math.isfinite(self.largest_gradient)

    @property
    def has_finite_results(self) -> bool:
        return math.isfinite(self.largest_result)


class UnreadCheck:
    """Checks that lie on a device until `read`, so that a step does not wait for them.

    `words` is (n, 4) int32, one row per check: bits of both magnitudes, and the low and high half of the hash.
    """

    def __init__(self, words: torch.Tensor):
        self.words = words

    def read(self) -> StepCheck:
        """Wait for the device; return the largest magnitudes, and the hash of the last check."""
        words = self.words.cpu().numpy().view(np.uint32)
        gradients, results = words[:, :2].max(axis=0).tolist()      # bits: NaN is above infinity
        low, high = words[-1, 2:].tolist()
        return StepCheck(_float_of(gradients), _float_of(results), high << 32 | low)


def worst_of(checks: Sequence[StepCheck | UnreadCheck]) -> StepCheck | UnreadCheck:
    """Largest magnitudes of several checks, NaN above all, and the hash of the last one; unread if all of them are."""
    if len(checks) == 1:
        return checks[0]
    unread = [check.words for check in checks if isinstance(check, UnreadCheck)]
    if len(unread) == len(checks):
        return UnreadCheck(torch.cat(unread))
    read = [check for check in checks if isinstance(check, StepCheck)]
    if unread:      # later than those that are read already, which came from a checkpoint
        read.append(UnreadCheck(torch.cat(unread)).read())
    largest = np.array([(check.largest_gradient, check.largest_result) for check in read]).max(axis=0)
    return StepCheck(float(largest[0]), float(largest[1]), read[-1].hash)


class AdamFactors(NamedTuple):
    mean_weight: float
    square_decay: float
    square_weight: float
    unbiased: float
    epsilon: float
    rate: float

    @classmethod
    def of_step(cls, number: int) -> AdamFactors:
        return cls(1 - MEAN_DECAY, SQUARE_DECAY, 1 - SQUARE_DECAY, math.sqrt(1 - SQUARE_DECAY ** number), EPSILON,
                   -1 / (1 - MEAN_DECAY ** number))


def adam_step(weights: torch.Tensor, gradient: torch.Tensor, lr: torch.Tensor, decay: torch.Tensor, mean: torch.Tensor,
              square: torch.Tensor, number: int) -> StepCheck | UnreadCheck:
    """One step of Adam: update (n,) float32 weights and both moments in place. All buffers are on one device.

        slope    = gradient + decay weights
        mean    += mean_weight (slope - mean)
        square   = square_decay square + square_weight slope²
        weights += rate lr mean / (√square / unbiased + epsilon)

    Steps count from 1. Reference: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1.
    """
    for tensor in (weights, gradient, lr, decay, mean, square):
        if tensor.dtype != torch.float32 or tensor.shape != weights.shape or not tensor.is_contiguous():
            raise KernelError(f"Adam needs buffers of {weights.numel()} contiguous float32, found "
                              f"{tuple(tensor.shape)} {tensor.dtype}")
    return _adam_step.on(weights.device)(weights, gradient, lr, decay, mean, square,
                                         AdamFactors.of_step(number))


def check_of(gradient: torch.Tensor, weights: torch.Tensor, *moments: torch.Tensor) -> StepCheck | UnreadCheck:
    """The `StepCheck` of any optimizer's step, from flat float32 buffers: gradients, weights, no or two moments."""
    return _check_of.on(weights.device)(gradient, weights, *moments)


@by_device("adam")
def _check_of(gradient: torch.Tensor, weights: torch.Tensor, *moments: torch.Tensor) -> StepCheck:
    if len(weights) == 0:
        return StepCheck()
    largest = [float(values.abs().amax()) for values in (gradient, weights, *moments)]
    low, high = _hash(weights).tolist()
    return StepCheck(largest[0], float(np.max(largest[1:])), (high & LOW_32) << 32 | (low & LOW_32))


def _hash(weights: torch.Tensor) -> torch.Tensor:
    index = torch.arange(len(weights), dtype=torch.int64, device=weights.device)
    bits = weights.view(torch.int32).to(torch.int64) & LOW_32
    # Mix each weight's bits with its index, so that weights that change places change the sum.
    mixed = bits ^ (index * 0x9E3779B1 & LOW_32)
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & LOW_32
    mixed = mixed ^ (mixed >> 13)
    second = (mixed * 0xC2B2AE35) & LOW_32
    return torch.stack([mixed.sum(), (second ^ (second >> 16)).sum()])


@by_device("adam")
def _adam_step(weights: torch.Tensor, gradient: torch.Tensor, lr: torch.Tensor, decay: torch.Tensor, mean: torch.Tensor,
               square: torch.Tensor, factors: AdamFactors) -> StepCheck:
    largest_gradient, largest_result, low, high = kernels.adam_step(
        weights.numpy(), gradient.numpy(), lr.numpy(), decay.numpy(), mean.numpy(), square.numpy(), *factors)
    return StepCheck(_float_of(largest_gradient), _float_of(largest_result), high << 32 | low)


def _float_of(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]
