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
    """The first packed row of `dim` columns that does not lie within its message; -1."""
    return kernels.first_outside(packed.message, packed.bit_width, packed.payload_offset, packed.parameter_offset, dim)


def multiply(matrix, near: torch.Tensor, far: torch.Tensor | None, out: torch.Tensor, is_added: bool,
             entry_scale: torch.Tensor | None, entry_index: np.ndarray | None, packed, tasks: np.ndarray) -> None:
    """Matrix times rows into `out`, on the threads of OpenMP, for the rows that `tasks` name."""
    split = len(near) if matrix.split is None else matrix.split
    kernels.aggregate_rows(matrix.begin, matrix.end, tasks, matrix.indices, matrix.row_scale,
                           matrix.column_scale, None if entry_scale is None else entry_scale.detach().numpy(),
                           entry_index, matrix.num_self, STORAGE_NUMBER[near.dtype], near.shape[1], split,
                           as_bytes(near), None if far is None else as_bytes(far), is_added, as_bytes(out),
                           None if packed is None else (packed.message, packed.bit_width, packed.payload_offset,
                                       packed.parameter_offset))
