"""Maximum over a row's entries, column by column, with its backward: the pooling form of aggregation."""

from __future__ import annotations

import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import SparseRows
from hpcgnn.ops.dispatch import backend_of
from hpcgnn.ops.storage import check_rows


def row_maximum(matrix: SparseRows, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """out[v, j] = largest h[u, j] over the entries u of row v, and which u.

    Parameters
    ----------
    matrix : SparseRows                         unscaled, every self-loop a stored entry
    h : (matrix.num_columns, dim) float32, bfloat16 or float16

    Returns
    -------
    out : (matrix.num_rows, dim), as h          0 without entries; NaN where any of them is
    argmax : (matrix.num_rows, dim) int32       the first entry that is largest; -1 without entries

    Raises
    ------
    KernelError      types or shapes that disagree; a matrix with scales or implied self-loops
    """
    check_rows(h, matrix.num_columns, "maximum")
    scales = matrix.row_scale, matrix.column_scale, matrix.entry_scale
    if matrix.num_self or any(scale is not None for scale in scales):
        raise KernelError("maximum needs a matrix without scales and with self-loops as stored entries")
    return backend_of("maximum", h).maximum(matrix, h)


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
        out, argmax = row_maximum(matrix, h.contiguous())
        ctx.save_for_backward(argmax)
        ctx.transposed = transposed
        return out

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        argmax, = ctx.saved_tensors
        kernels = backend_of("maximum", gradient)
        return kernels.maximum_backward(ctx.transposed, gradient.contiguous(), argmax), None, None


def maximum(h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
    """`row_maximum` without its argmax, differentiable in h: a gradient goes to the first row that is largest.

    Parameters
    ----------
    h : (matrix.num_columns, dim) float32, bfloat16 or float16
    matrix, transposed : SparseRows             the same entries by rows and by columns, ascending in each column

    Returns
    -------
    (matrix.num_rows, dim), as h

    Raises
    ------
    KernelError      h has not one row of such a type a column of the matrix; a matrix with scales or self-loops
    """
    if h.ndim != 2 or len(h) != matrix.num_columns:
        raise KernelError(f"maximum needs {matrix.num_columns} rows, found shape {tuple(h.shape)}")
    return _Maximum.apply(h, matrix, transposed)
