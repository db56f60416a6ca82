"""Maximum over a row's entries, column by column, with its backward: pooling as aggregation."""

from __future__ import annotations

import torch

from hpcgnn._ext import maximum as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import SparseRows
from hpcgnn.ops.arena import empty
from hpcgnn.ops.dispatch import by_device
from hpcgnn.ops.storage import STORAGE_NUMBER, as_bytes, check_rows


def row_maximum(matrix: SparseRows, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """out[v, j] = largest h[u, j] over the entries u of row v, and the u that has it.

    `matrix` is unscaled with stored self-loops, else KernelError; h is (matrix.num_columns, dim) float32, bfloat16 or
    float16. Returns out (matrix.num_rows, dim), 0 for a row without entries and NaN if an entry is NaN, and argmax in
    int32: the first largest entry, or -1.
    """
    check_rows(h, matrix.num_columns, "maximum")
    scales = matrix.row_scale, matrix.column_scale, matrix.entry_scale
    if matrix.num_self or any(scale is not None for scale in scales):
        raise KernelError("maximum needs a matrix without scales and with self-loops as stored entries")
    return _maximum.on(h.device)(matrix, h)


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
        out, argmax = row_maximum(matrix, h.contiguous())
        # The gradient only needs the number of the largest row.
        ctx.save_for_backward(argmax)
        ctx.transposed = transposed
        return out

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        argmax, = ctx.saved_tensors
        return _maximum_backward.on(gradient.device)(ctx.transposed, gradient.contiguous(), argmax), None, None


def maximum(h: torch.Tensor, matrix: SparseRows, transposed: SparseRows) -> torch.Tensor:
    """`row_maximum` without argmax, differentiable in h: a gradient goes to the first largest row.

    `transposed` has the entries of `matrix` by columns, ascending in each column; errors as in `row_maximum`.
    """
    if h.ndim != 2 or len(h) != matrix.num_columns:
        raise KernelError(f"maximum needs {matrix.num_columns} rows, found shape {tuple(h.shape)}")
    return _Maximum.apply(h, matrix, transposed)


@by_device("aggregation")
def _maximum(matrix, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shape = matrix.num_rows, h.shape[1]
    out, argmax = empty(shape, h.dtype), empty(shape, torch.int32)
    kernels.maximum_forward(matrix.begin, matrix.end, matrix.tasks, matrix.indices, STORAGE_NUMBER[h.dtype],
                            h.shape[1], as_bytes(h), as_bytes(out), argmax.numpy())
    return out, argmax


@by_device("aggregation")
def _maximum_backward(transposed, gradient: torch.Tensor, argmax: torch.Tensor) -> torch.Tensor:
    out = empty((transposed.num_rows, gradient.shape[1]), gradient.dtype)
    kernels.maximum_backward(transposed.begin, transposed.end, transposed.tasks, transposed.indices,
                             STORAGE_NUMBER[gradient.dtype], gradient.shape[1], as_bytes(gradient), argmax.numpy(),
                             as_bytes(out))
    return out
