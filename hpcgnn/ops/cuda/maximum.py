"""Device side of `hpcgnn.ops.maximum`, edge-parallel as aggregation is. Contracts are already checked."""

from __future__ import annotations

import torch

from hpcgnn.ops.cuda.folds import fold_segments, fold_spilled, staging
from hpcgnn.ops.cuda.storage import SUFFIX, alignment


def maximum(matrix, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest of each row's entries, column by column, and the row of h that has it."""
    shape, suffix, dim = (matrix.num_rows, h.shape[1]), SUFFIX[h.dtype], h.shape[1]
    out = torch.empty(shape, dtype=h.dtype, device=h.device)
    argmax = torch.empty(shape, dtype=torch.int32, device=h.device)
    if out.numel() == 0:
        return out, argmax
    cut, is_aligned = matrix.geometry.segments(0, matrix.num_rows), int(alignment(h, out) >= 2)
    results = is_aligned, staging(cut, dim, h), staging(cut, dim, h, torch.int32), out, argmax
    fold_segments("maximum", f"maximum_{suffix}", cut, matrix, h, dim, h.detach(), dim, *results)
    fold_spilled("maximum", f"maximum_spilled_{suffix}", cut, h, dim, *results)
    return out, argmax


def maximum_backward(transposed, gradient: torch.Tensor, argmax: torch.Tensor) -> torch.Tensor:
    """Return the gradient of h: each row gathers from the rows whose maximum it is."""
    dim, suffix = gradient.shape[1], SUFFIX[gradient.dtype]
    out = torch.empty((transposed.num_rows, dim), dtype=gradient.dtype, device=gradient.device)
    if out.numel() == 0:
        return out
    cut, is_aligned = transposed.geometry.segments(0, transposed.num_rows), int(alignment(gradient, out) >= 2)
    parts = staging(cut, dim, gradient)
    fold_segments("maximum", f"maximum_backward_{suffix}", cut, transposed, gradient, dim, gradient, argmax, dim,
                  is_aligned, parts, out)
    fold_spilled("aggregation", f"aggregate_spilled_{suffix}", cut, gradient, dim, None, is_aligned, 0, parts, out)
    return out
