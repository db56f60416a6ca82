"""Cross-entropy of logits of any storage type; the host converts one block of rows at a time to float32."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpcgnn.ops.arena import empty
from hpcgnn.ops.dispatch import by_device

ROWS_A_BLOCK = 1 << 14


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss, log_sums = _loss_sum.on(logits.device)(logits, labels)
        ctx.save_for_backward(logits, labels, log_sums)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor):
        return _loss_backward.on(gradient.device)(*ctx.saved_tensors, gradient.contiguous()), None


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum over all rows of -log(softmax(logits)) at the labels, float32; on the host the bits of torch's in float32.

    Differentiable in logits, (n, num_classes) float32, bfloat16 or float16; labels are (n,) int64.
    """
    return _CrossEntropy.apply(logits.contiguous(), labels.contiguous())


@by_device("cross_entropy")
def _loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the sum and, on a device, the logarithm of each row's sum, which the backward pass reads; else None."""
    chosen = torch.empty(len(logits), 1, device=logits.device)
    for rows in _blocks(len(logits)):
        chosen[rows] = functional.log_softmax(logits[rows].float(), 1).gather(1, labels[rows, None])
    # One column, so that the rows are added in the order in which torch adds them.
    return functional.nll_loss(chosen, torch.zeros_like(labels), reduction="sum"), None


@by_device("cross_entropy")
def _loss_backward(logits: torch.Tensor, labels: torch.Tensor, log_sums: torch.Tensor | None,
                   gradient: torch.Tensor) -> torch.Tensor:
    of_logits = empty(logits.shape, logits.dtype, logits.device)
    for rows in _blocks(len(logits)):
        likely = functional.log_softmax(logits[rows].float(), 1)
        of_likely = torch.zeros_like(likely).scatter_(1, labels[rows, None], -gradient.expand(len(likely), 1))
        of_logits[rows] = torch.ops.aten._log_softmax_backward_data(of_likely, likely, 1, torch.float32)
    return of_logits


def _blocks(num_rows: int) -> Iterator[slice]:
    return (slice(start, start + ROWS_A_BLOCK) for start in range(0, num_rows, ROWS_A_BLOCK))
