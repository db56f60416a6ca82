"""Host side of `hpcgnn.ops.pointwise`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import pointwise as kernels
from hpcgnn.ops.arena import empty
from hpcgnn.ops.counter import DRAW_LEVELS, CounterKey
from hpcgnn.ops.host.storage import STORAGE_NUMBER, as_bytes

ROWS_A_BLOCK, MAX_BLOCKS = 256, 1024     # rows whose weight gradients one thread sums; fixed by the number of rows


def dropout(rows: torch.Tensor, node_id: np.ndarray, key: CounterKey, threshold: int,
            out: torch.Tensor | None = None) -> torch.Tensor:
    """Drop the elements whose draw is below `threshold`; scale the others by 1 / P(kept). `out` may be the rows."""
    out = empty(rows.shape, rows.dtype) if out is None else out
    kernels.dropout_rows(as_bytes(rows), *_dropout_arguments(node_id, key, threshold), as_bytes(out),
                         STORAGE_NUMBER[rows.dtype])
    return out


def activate(rows: torch.Tensor, node_id: np.ndarray | None, key: CounterKey | None, threshold: int,
             weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float,
             out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return activated rows, and (n, 2) float32 of each row's mean and 1 / deviation; threshold 0 makes no draws. `out`
    may be the rows.
    """
    out = empty(rows.shape, rows.dtype) if out is None else out
    moments = torch.empty(0 if weight is None else len(rows), 2)
    kernels.activate_rows(as_bytes(rows), STORAGE_NUMBER[rows.dtype], *_dropout_arguments(node_id, key, threshold),
                          _floats(weight), _floats(bias), eps, moments.numpy(), as_bytes(out))
    return out, moments


def activate_backward(gradient: torch.Tensor, rows: torch.Tensor, node_id: np.ndarray | None, key: CounterKey | None,
                      threshold: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float,
                      moments: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Write the gradients of rows to `out`, which may be `gradient`; return those of weight and bias, None where rows
    are not normalized.
    """
    num_blocks = min(-(-len(rows) // ROWS_A_BLOCK), MAX_BLOCKS)
    sums = np.empty((num_blocks, 3, rows.shape[1]), np.float32)
    # Zeros: without rows nothing is written.
    weight_gradient, bias_gradient = (None if w is None else torch.zeros_like(w) for w in (weight, bias))
    kernels.activate_backward(as_bytes(rows), STORAGE_NUMBER[rows.dtype], *_dropout_arguments(node_id, key, threshold),
                              _floats(weight), _floats(bias), eps, moments.numpy(), as_bytes(gradient), sums,
                              as_bytes(out), _floats(weight_gradient), _floats(bias_gradient))
    return weight_gradient, bias_gradient


def _dropout_arguments(node_id: np.ndarray | None, key: CounterKey | None, threshold: int) -> tuple:
    """Return node_id, seed, epoch, stream, threshold and scale, as every kernel takes them."""
    if threshold == 0:
        return None, 0, 0, 0, 0, 1.0
    return node_id, key.seed, key.epoch, key.stream, threshold, DRAW_LEVELS / (DRAW_LEVELS - threshold)


def _floats(values: torch.Tensor | None) -> np.ndarray | None:
    return None if values is None else values.detach().numpy()
