"""Cross-entropy of logits of any storage type; the host converts one block of rows at a time to float32.

Of some rows, the host reads each block where it lies, and writes their gradient into a table of all rows: no copy of
the rows exists.
"""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpcgnn.ops.arena import empty
from hpcgnn.ops.dispatch import by_device

ROWS_A_BLOCK = 1 << 14


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        loss, log_sums = _loss_sum.on(logits.device)(logits, labels) if rows is None else \
            (_loss_of_rows(logits, labels, rows), None)
        ctx.save_for_backward(logits, labels, log_sums, rows)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor):
        logits, labels, log_sums, rows = ctx.saved_tensors
        if rows is None:
            return _loss_backward.on(gradient.device)(logits, labels, log_sums, gradient.contiguous()), None, None
        return _loss_of_rows_backward(logits, labels, rows, gradient), None, None


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Sum over all rows of -log(softmax(logits)) at the labels, float32; on the host the bits of torch's in float32.

    Differentiable in logits, (n, num_classes) float32, bfloat16 or float16; labels are (n,) int64. With `rows`, (m,)
    int64, each once, the sum is over these rows of the logits, and labels are (m,) int64. `rows` are for the host.
    """
    return _CrossEntropy.apply(logits.contiguous(), labels.contiguous(), rows)


def reads_rows(device: torch.device) -> bool:
    """Whether `cross_entropy` takes `rows` here."""
    return _loss_sum.on(device) is _loss_sum.host


@by_device("cross_entropy")
def _loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the sum and, on a device, the logarithm of each row's sum, which the backward pass reads; else None."""
    return _loss_of_rows(logits, labels, None), None


def _loss_of_rows(logits: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    chosen = torch.empty(len(labels), 1, device=logits.device)
    for start in range(0, len(labels), ROWS_A_BLOCK):
        span = slice(start, start + ROWS_A_BLOCK)
        block = logits[span if rows is None else rows[span]]
        chosen[span] = functional.log_softmax(block.float(), 1).gather(1, labels[span, None])
    # One column, so that the rows are added in the order in which torch adds them.
    return functional.nll_loss(chosen, torch.zeros_like(labels), reduction="sum")


@by_device("cross_entropy")
def _loss_backward(logits: torch.Tensor, labels: torch.Tensor, log_sums: torch.Tensor | None,
                   gradient: torch.Tensor) -> torch.Tensor:
    return _loss_of_rows_backward(logits, labels, None, gradient)


def _loss_of_rows_backward(logits: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None,
                           gradient: torch.Tensor) -> torch.Tensor:
    of_logits = empty(logits.shape, logits.dtype, logits.device)
    if rows is not None:
        of_logits.zero_()
    for start in range(0, len(labels), ROWS_A_BLOCK):
        span = slice(start, start + ROWS_A_BLOCK)
        place = span if rows is None else rows[span]
        likely = functional.log_softmax(logits[place].float(), 1)
        of_likely = torch.zeros_like(likely).scatter_(1, labels[span, None], -gradient.expand(len(likely), 1))
        of_logits[place] = torch.ops.aten._log_softmax_backward_data(of_likely, likely, 1, torch.float32).to(
            logits.dtype)
    return of_logits
