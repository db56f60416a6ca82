"""Element-wise operations whose randomness is keyed by global node id: the same element drops on every rank."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import DRAW_LEVELS, CounterKey
from hpcgnn.ops.dispatch import backend_of


class _Dropout(torch.autograd.Function):
    """The mask is not kept: backward draws it again from the key."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, node_id: np.ndarray, key: CounterKey, threshold: int) -> torch.Tensor:
        ctx.arguments = node_id, key, threshold
        return backend_of("pointwise", rows).dropout(rows.contiguous(), node_id, key, threshold)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        node_id, key, threshold = ctx.arguments
        masked = backend_of("pointwise", gradient).dropout(gradient.contiguous(), node_id, key, threshold)
        return masked, None, None, None


def dropout(rows: torch.Tensor, probability: float, node_id: np.ndarray, key: CounterKey) -> torch.Tensor:
    """Zero each element with `probability` and scale the rest, so that the expectation is the input.

    Parameters
    ----------
    rows : (n, dim) float32
    probability : float in [0, 1), rounded to a multiple of 2**-16
    node_id : (n,) int64            global ids of the rows
    key : CounterKey                purpose DROPOUT

    Returns
    -------
    (n, dim) float32

    Raises
    ------
    KernelError      probability outside [0, 1); ids and rows that disagree in number
    """
    if not 0.0 <= probability < 1.0:
        raise KernelError(f"dropout probability must lie in [0, 1), found {probability}")
    if len(node_id) != len(rows):
        raise KernelError(f"dropout was given {len(rows)} rows and {len(node_id)} node ids")
    threshold = round(probability * DRAW_LEVELS)
    if threshold == 0:
        return rows
    return _Dropout.apply(rows, node_id, key, min(threshold, DRAW_LEVELS - 1))
