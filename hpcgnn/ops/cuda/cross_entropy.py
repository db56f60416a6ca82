"""Cross-entropy on a device by kernels/cross_entropy.cu: one pass over the logits forward, and one backward."""

from __future__ import annotations

import torch

from hpcgnn.ops.cuda.dense import column_sums
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.segments import SUFFIX, lanes_a_row

BLOCK_THREADS = 256


def loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows, dim = logits.shape
    log_sums, losses = torch.empty(2, num_rows, device=logits.device).unbind()
    lanes = lanes_a_row(dim)
    kernel("cross_entropy", f"loss_rows_{SUFFIX[logits.dtype]}")(
        (-(-num_rows * lanes // BLOCK_THREADS),), (BLOCK_THREADS,), logits.detach(), labels, num_rows, dim, lanes,
        log_sums, losses)
    return column_sums(losses[:, None])[0], log_sums


def loss_backward(logits: torch.Tensor, labels: torch.Tensor, log_sums: torch.Tensor,
                  gradient: torch.Tensor) -> torch.Tensor:
    (num_rows, dim), out = logits.shape, torch.empty_like(logits)
    lanes = lanes_a_row(dim)
    kernel("cross_entropy", f"loss_backward_{SUFFIX[logits.dtype]}")(
        (-(-num_rows * lanes // BLOCK_THREADS),), (BLOCK_THREADS,), logits, labels, log_sums, gradient, num_rows, dim,
        lanes, out)
    return out
