"""Host side of `hpcgnn.ops.aggregation`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import aggregation as kernels
from hpcgnn.ops.host.storage import STORAGE_NUMBER, as_bytes


def first_bad_row(matrix, no_row: int, split: int) -> int:
    """The first row whose entries are not stored, or name a column outside the matrix or in [no_row, split); -1."""
    return kernels.first_bad_row(matrix.begin, matrix.end, matrix.indices, matrix.num_columns, no_row, split)


def first_outside(packed, dim: int) -> int:
    """Return the first packed row of `dim` columns that does not lie within its message; -1."""
    return kernels.first_outside(packed.message, packed.bit_width, packed.payload_offset, packed.parameter_offset, dim)


def multiply(matrix, near: torch.Tensor, far, out: torch.Tensor, tasks: np.ndarray, is_added: bool) -> None:
    """Matrix times rows stored in `out`, or added to it, on the threads of OpenMP, for the rows that `tasks` name."""
    entry_scale = None if matrix.entry_scale is None else matrix.entry_scale[:, None]
    _aggregate(matrix, near, far, out, tasks, is_added, entry_scale)


def multiply_weighted(matrix, near: torch.Tensor, entry_scale: torch.Tensor, entry_index: np.ndarray | None,
                      out: torch.Tensor) -> None:
    """Matrix with weights of its entries times rows, stored in `out`."""
    _aggregate(matrix, near, None, out, matrix.tasks, False, entry_scale.detach().numpy(), entry_index)


def _aggregate(matrix, near: torch.Tensor, far, out: torch.Tensor, tasks: np.ndarray, is_added: bool,
               entry_scale: np.ndarray | None = None, entry_index: np.ndarray | None = None) -> None:
    split = len(near) if matrix.split is None else matrix.split
    is_dense = isinstance(far, torch.Tensor)
    packed = None if is_dense or far is None else (far.message, far.bit_width, far.payload_offset, far.parameter_offset)
    kernels.aggregate_rows(matrix.begin, matrix.end, tasks, matrix.indices, matrix.row_scale, matrix.column_scale,
                           entry_scale, entry_index, matrix.num_self, STORAGE_NUMBER[near.dtype], near.shape[1], split,
                           as_bytes(near), as_bytes(far) if is_dense else None, is_added, as_bytes(out), packed)
