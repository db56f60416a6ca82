"""Host side of `hpcgnn.ops.attention`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import attention as kernels
from hpcgnn.ops.arena import empty
from hpcgnn.ops.host.storage import STORAGE_NUMBER, as_bytes


def head_scores(rows: torch.Tensor, vectors: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return <row, vector> over each head's columns, (num_vectors, num_rows, num_heads) float32."""
    score = empty((len(vectors), len(rows), num_heads))
    kernels.head_scores(as_bytes(rows), STORAGE_NUMBER[rows.dtype], rows.shape[1] // num_heads,
                        vectors.detach().numpy(), score.numpy())
    return score


def head_scores_backward(rows: torch.Tensor, gradient: torch.Tensor, vectors: torch.Tensor,
                         score_gradient: torch.Tensor) -> torch.Tensor:
    """Adds the gradient of `rows` to `gradient`; returns that of `vectors`, summed in float64 over ranges of rows."""
    partial = np.zeros((-(-len(rows) // kernels.TASK_ROWS), *vectors.shape), np.float32)
    kernels.head_scores_backward(as_bytes(rows), as_bytes(gradient), STORAGE_NUMBER[rows.dtype],
                                 rows.shape[1] // score_gradient.shape[2], vectors.detach().numpy(),
                                 score_gradient.numpy(), partial)
    return torch.from_numpy(partial.sum(axis=0, dtype=np.float64).astype(np.float32))


def entry_dtype(rows: torch.Tensor) -> torch.dtype:
    """Return what values of entries beside these rows are stored in: float32, whatever the rows are."""
    return torch.float32


def edge_softmax(matrix, target: torch.Tensor, source: torch.Tensor, slope: float,
                 dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the softmax over each row's entries, (num_entries, num_heads) float32, which `dtype` is."""
    alpha = empty((len(matrix.indices), target.shape[1]))
    kernels.edge_softmax(matrix.begin, matrix.end, matrix.tasks, matrix.indices, target.detach().numpy(),
                         source.detach().numpy(), slope, alpha.numpy())
    return alpha


def edge_softmax_backward(matrix, target: torch.Tensor, source: torch.Tensor, slope: float, alpha: torch.Tensor,
                          gradient: torch.Tensor) -> torch.Tensor:
    """Turns the gradient of alpha into that of the scores, in place; returns its sum over each row."""
    target_gradient = empty((matrix.num_rows, alpha.shape[1]))
    kernels.edge_softmax_backward(matrix.begin, matrix.end, matrix.tasks, matrix.indices, target.detach().numpy(),
                                  source.detach().numpy(), slope, alpha.numpy(), gradient.numpy(),
                                  target_gradient.numpy())
    return target_gradient


def sum_entries(matrix, value: torch.Tensor, entry_index: np.ndarray) -> torch.Tensor:
    """Sum of the values of each row's entries, (num_rows, num_heads) float32."""
    out = empty((matrix.num_rows, value.shape[1]))
    kernels.sum_entries(matrix.begin, matrix.end, matrix.tasks, matrix.indices, entry_index, value.detach().numpy(),
                        out.numpy())
    return out


def take_entries(value: torch.Tensor, entry_index: np.ndarray) -> torch.Tensor:
    """Return value[entry_index], (num_entries, num_heads) float32."""
    out = empty((len(entry_index), value.shape[1]))
    kernels.take_entries(entry_index, value.detach().numpy(), out.numpy())
    return out


def sampled_products(matrix, left: torch.Tensor, right: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return <left row, right row> of each entry over each head's columns, (num_entries, num_heads) float32."""
    out = empty((len(matrix.indices), num_heads))
    kernels.sampled_products(matrix.begin, matrix.end, matrix.tasks, matrix.indices, STORAGE_NUMBER[left.dtype],
                             left.shape[1] // num_heads, as_bytes(left), as_bytes(right), out.numpy())
    return out
