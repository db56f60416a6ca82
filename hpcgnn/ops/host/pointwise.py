"""Host side of `hpcgnn.ops.pointwise`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import pointwise as kernels
from hpcgnn.ops.counter import DRAW_LEVELS, CounterKey


def dropout(rows: torch.Tensor, node_id: np.ndarray, key: CounterKey, threshold: int) -> torch.Tensor:
    """Drop the elements whose draw is below `threshold`; scale the others by 1 / P(kept)."""
    out = torch.empty_like(rows)
    scale = DRAW_LEVELS / (DRAW_LEVELS - threshold)
    kernels.dropout_rows(rows.detach().numpy(), node_id, key.seed, key.epoch, key.stream, threshold, scale,
                         out.numpy())
    return out
