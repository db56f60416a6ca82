"""Storage types of activations, and rows as bytes for the compiled kernels. All operations sum in float32.

`as_bytes(rows)` is the memory of a contiguous (n, dim) matrix on the host as an (n, bytes of a row) buffer of uint8.
"""

from __future__ import annotations

import torch

from hpcgnn._ext.storage import RowBytes
from hpcgnn.errors import KernelError

as_bytes = RowBytes
STORAGES = (torch.float32, torch.bfloat16, torch.float16)
STORAGE_NUMBER = {storage: number for number, storage in enumerate(STORAGES)}      # of ext/src/storage.h


def check_rows(rows: torch.Tensor, num_rows: int, operation: str, *dtypes: torch.dtype) -> None:
    """Raise KernelError unless `rows` is a contiguous (num_rows, dim) matrix of a storage type, or of `dtypes`."""
    allowed = dtypes or STORAGES
    if rows.dtype not in allowed or rows.ndim != 2 or rows.shape[0] != num_rows or not rows.is_contiguous():
        names = " or ".join(str(allowed_type).removeprefix("torch.") for allowed_type in allowed)
        raise KernelError(f"{operation} needs contiguous {names} of {num_rows} rows, "
                          f"found {rows.dtype} of shape {tuple(rows.shape)}")
