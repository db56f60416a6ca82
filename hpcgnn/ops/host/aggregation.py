"""Host side of `hpcgnn.ops.aggregation`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import torch

from hpcgnn._ext import aggregation as kernels


def aggregate(matrix, h: torch.Tensor) -> torch.Tensor:
    """Matrix times rows, on the threads of OpenMP."""
    out = torch.empty(matrix.num_rows, h.shape[1], dtype=torch.float32)
    kernels.aggregate_rows(matrix.indptr, matrix.indices, matrix.row_scale, matrix.column_scale, matrix.num_self,
                           h.detach().numpy(), out.numpy())
    return out
