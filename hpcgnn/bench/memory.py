"""Arrays on huge pages where the system gives them, touched once, so that no page fault is ever timed."""

from __future__ import annotations

import math
import mmap

import numpy as np
import torch

MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)    # Linux only


def zeros(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """An array of zeros in pages of its own, all present."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, max(num_bytes, 1))
    if MADV_HUGEPAGE is not None:
        pages.madvise(MADV_HUGEPAGE)
    array = np.frombuffer(pages, np.uint8)[:num_bytes]
    array.fill(0)
    return array.view(dtype).reshape(shape)


def random_rows(num_rows: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """(num_rows, dim) standard normal values."""
    rows = empty_rows(num_rows, dim, dtype)
    rows.copy_(torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed)))
    return rows


def empty_rows(num_rows: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(num_rows, dim) zeros of any storage type."""
    return torch.from_numpy(zeros((num_rows, dim * dtype.itemsize), "uint8")).view(dtype)


def as_stream(rows: torch.Tensor) -> np.ndarray:
    """The bytes of contiguous rows, the same memory, for the streams of `hpcgnn.bench.ceilings`."""
    return rows.view(torch.uint8).numpy().reshape(-1)
