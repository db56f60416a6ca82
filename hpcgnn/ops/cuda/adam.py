"""A step of Adam and its check on a device, by kernels/adam.cu: the host's bits, read when the host asks for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from hpcgnn.ops.adam import AdamFactors, UnreadCheck
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.step_numbers import factors_of_step

BLOCK_THREADS = 256
VALUES_A_THREAD, MAX_BLOCKS = 4, 1024

_kernel = partial(kernel, "adam", is_exact=True)


def adam_step(weights: torch.Tensor, gradient: torch.Tensor, lr: torch.Tensor, decay: torch.Tensor, mean: torch.Tensor,
              square: torch.Tensor, factors: AdamFactors) -> UnreadCheck:
    buffers = weights, gradient, lr, decay, mean, square
    return _checked(len(weights), weights.device, lambda grid, checks: _kernel("adam_step")(
        grid, (BLOCK_THREADS,), *buffers, *factors, factors_of_step(factors), len(weights), checks))


def check_of(gradient: torch.Tensor, weights: torch.Tensor, *moments: torch.Tensor) -> UnreadCheck:
    mean, square = moments or (None, None)
    return _checked(max(len(gradient), len(weights)), weights.device, lambda grid, checks: _kernel("check_buffers")(
        grid, (BLOCK_THREADS,), gradient, len(gradient), weights, mean, square, len(weights), checks))


def _checked(num_values: int, device: torch.device,
             launch: Callable[[tuple[int], torch.Tensor], None]) -> UnreadCheck:
    num_blocks = min(MAX_BLOCKS, max(1, -(-num_values // (BLOCK_THREADS * VALUES_A_THREAD))))
    checks = torch.empty(num_blocks, 4, dtype=torch.int32, device=device)
    launch((num_blocks,), checks)
    if num_blocks == 1:
        return UnreadCheck(checks)
    joined = torch.empty(1, 4, dtype=torch.int32, device=device)
    _kernel("join_checks")((1,), (BLOCK_THREADS,), checks, num_blocks, joined)
    return UnreadCheck(joined)
