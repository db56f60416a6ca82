"""Host side of `hpcgnn.ops.maximum`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import torch

from hpcgnn._ext import maximum as kernels
from hpcgnn.ops.arena import empty
from hpcgnn.ops.host.storage import STORAGE_NUMBER, as_bytes


def maximum(matrix, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest of each row's entries, column by column, and the row of h that has it."""
    shape = matrix.num_rows, h.shape[1]
    out, argmax = empty(shape, h.dtype), empty(shape, torch.int32)
    kernels.maximum_forward(matrix.begin, matrix.end, matrix.tasks, matrix.indices, STORAGE_NUMBER[h.dtype],
                            h.shape[1], as_bytes(h), as_bytes(out), argmax.numpy())
    return out, argmax


def maximum_backward(transposed, gradient: torch.Tensor, argmax: torch.Tensor) -> torch.Tensor:
    """Return the gradient of h: each row gathers from the rows whose maximum it is."""
    out = empty((transposed.num_rows, gradient.shape[1]), gradient.dtype)
    kernels.maximum_backward(transposed.begin, transposed.end, transposed.tasks, transposed.indices,
                             STORAGE_NUMBER[gradient.dtype], gradient.shape[1], as_bytes(gradient), argmax.numpy(),
                             as_bytes(out))
    return out
