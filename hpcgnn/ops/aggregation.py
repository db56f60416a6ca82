"""Aggregation: a sparse matrix, given by rows and by columns, times dense rows (SpMM), with its backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.dispatch import backend_of


@dataclass(frozen=True)
class SparseRows:
    """A sparse 0/1 matrix by rows, scaled on both sides: row_scale[v] * A[v, u] * column_scale[u].

    Attributes
    ----------
    indptr : (num_rows + 1,) int64
    indices : (num_entries,) int32, columns in [0, num_columns)
    num_columns : int
    num_self : int                              rows v < num_self also have the entry (v, v), not stored
    row_scale : (num_rows,) float32 or None     None is 1
    column_scale : (num_columns,) float32 or None
    """

    indptr: np.ndarray
    indices: np.ndarray
    num_columns: int
    num_self: int = 0
    row_scale: np.ndarray | None = None
    column_scale: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
        ctx.transposed = transposed
        return backend_of("aggregation", h).aggregate(matrix, h.contiguous())

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return backend_of("aggregation", gradient).aggregate(ctx.transposed, gradient.contiguous()), None, None


def aggregate(h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
    """out = matrix @ h, differentiable in h.

    Parameters
    ----------
    h : (matrix.num_columns, dim) float32
    matrix, transposed : SparseRows             the same matrix by rows and by columns

    Returns
    -------
    (matrix.num_rows, dim) float32              each row summed in the order of its entries, whatever the threads

    Raises
    ------
    KernelError      h has not one float32 row a column of the matrix
    """
    if h.dtype != torch.float32 or h.ndim != 2 or len(h) != matrix.num_columns:
        raise KernelError(f"aggregate needs float32 of {matrix.num_columns} rows, "
                          f"found {h.dtype} of shape {tuple(h.shape)}")
    return _Aggregate.apply(h, matrix, transposed)
