"""Host side of `hpcgnn.ops.adam`, over the compiled kernel. Contracts are already checked."""

from __future__ import annotations

import struct
from dataclasses import astuple

import torch

from hpcgnn._ext import adam as kernels
from hpcgnn.ops.adam import AdamFactors, StepCheck


def adam_step(weights: torch.Tensor, gradient: torch.Tensor, lr: torch.Tensor, decay: torch.Tensor, mean: torch.Tensor,
              square: torch.Tensor, factors: AdamFactors) -> StepCheck:
    """One pass over the buffers."""
    buffers = (tensor.numpy() for tensor in (weights, gradient, lr, decay, mean, square))
    largest_gradient, largest_result, low, high = kernels.adam_step(*buffers, *astuple(factors))
    return StepCheck(_float_of(largest_gradient), _float_of(largest_result), high << 32 | low)


def _float_of(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]
