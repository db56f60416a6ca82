"""This module hands rows of any storage type to compiled kernels, as bytes with the number of ext/src/storage.h."""

from __future__ import annotations

import numpy as np
import torch

STORAGE_NUMBER = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def as_bytes(rows: torch.Tensor) -> np.ndarray:
    """Return (n, dim) contiguous rows as (n, dim * itemsize) uint8, the same memory."""
    if rows.numel() == 0:
        # torch gives an empty matrix strides that its own view refuses.
        return np.empty((len(rows), rows.shape[1] * rows.itemsize), np.uint8)
    return rows.detach().view(torch.uint8).numpy()
