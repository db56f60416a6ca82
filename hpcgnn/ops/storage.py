"""Storage types of activations, and rows as bytes for the compiled kernels. All operations sum in float32."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.errors import KernelError

STORAGES = (torch.float32, torch.bfloat16, torch.float16)


def check_rows(rows: torch.Tensor, num_rows: int, operation: str, *dtypes: torch.dtype) -> None:
    """Raise KernelError unless `rows` is a contiguous (num_rows, dim) matrix of a storage type, or of `dtypes`."""
    allowed = dtypes or STORAGES
    if rows.dtype not in allowed or rows.ndim != 2 or len(rows) != num_rows or not rows.is_contiguous():
        names = " or ".join(str(allowed_type).removeprefix("torch.") for allowed_type in allowed)
        raise KernelError(f"{operation} needs contiguous {names} of {num_rows} rows, "
                          f"found {rows.dtype} of shape {tuple(rows.shape)}")


STORAGE_NUMBER = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def as_bytes(rows: torch.Tensor) -> np.ndarray:
    if rows.numel() == 0:
        # For an empty matrix, torch's strides are refused by its own view.
        return np.empty((len(rows), rows.shape[1] * rows.itemsize), np.uint8)
    return rows.detach().view(torch.uint8).numpy()
