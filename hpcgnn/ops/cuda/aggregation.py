"""Edge-parallel SpMM and maximum after HalfGNN: launches of kernels/aggregation.cu and maximum.cu.

Each block folds an equal share of the entries. If a row lies in several blocks, they leave their parts in a staging
buffer, and a second kernel finishes the row. See kernels/segments.cuh, and segments.py for the geometry.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from hpcgnn.ops.aggregation import SparseRows
from hpcgnn.ops.cuda.module import LATER, BoundKernel, kernel
from hpcgnn.ops.cuda.segments import PAIR, SUFFIX, Segments, alignment, column_blocks
from hpcgnn.ops.resident import on_device

LANE_BYTES = 16           # bytes that a lane loads at once, if rows allow it
LEAST_WIDE_LANES = 4      # least lanes per row for loads of LANE_BYTES


def multiply(matrix, near: torch.Tensor, far, out: torch.Tensor, tasks: np.ndarray, is_added: bool) -> None:
    first, last = int(tasks[0]), int(tasks[-1])
    if first < last and near.shape[1]:
        launch(matrix.geometry.segments(first, last), matrix, near, far, out, is_added,
               (None if matrix.entry_scale is None else on_device(matrix.entry_scale, near)[:, None], None))


def multiply_weighted(matrix, near: torch.Tensor, entry_scale: torch.Tensor, entry_index: np.ndarray | None,
                      out: torch.Tensor) -> None:
    if out.numel():
        launch(matrix.geometry.segments(0, matrix.num_rows), matrix, near, None, out, False,
               (entry_scale, entry_index))


def launch(cut: Segments, matrix, near: torch.Tensor, far, out: torch.Tensor, is_added: bool,
           entries: tuple[torch.Tensor | None, np.ndarray | None] = (None, None), columns: int | None = None) -> None:
    """Fold all blocks of at least one row, then the rows that several blocks share, in float32 or half arithmetic.

    `entries` are the scale of each entry, and where it lies.
    """
    entry_scale, entry_index = entries
    dim, is_half = near.shape[1], matrix.has_half_sums and near.dtype != torch.float32
    dense, packed = (far, None) if far is None or isinstance(far, torch.Tensor) else (None, far)
    columns = columns or lane_columns(dim, entry_scale, near.itemsize)
    is_aligned, is_ragged = alignment(near, dense, out) >= columns, columns > PAIR and dim % PAIR == 1
    if columns > PAIR and not is_aligned and not is_ragged:      # rows inside other memory: slow, but rare
        aside = [rows if rows is None or alignment(rows) >= columns else rows.clone() for rows in (near, dense, out)]
        launch(cut, matrix, aside[0], aside[1] if packed is None else packed, aside[2], is_added, entries)
        if aside[2] is not out:
            out.copy_(aside[2])
        return
    num_heads = 1 if entry_scale is None else entry_scale.shape[1]
    split = len(near) if matrix.split is None else matrix.split
    lanes = "ragged_" if is_ragged else "wide_" if columns > PAIR else ""
    form = _Form(f"{lanes}{_kind(num_heads, packed)}{'half_' if is_half else ''}", dim, columns, int(is_aligned),
                 len(near), 0 if dense is None else len(dense), split, num_heads, int(is_added))
    # Arguments are checked once per form: later products of the same matrix only bring other tensors.
    key = "aggregate", cut.start, cut.stop, cut.items_a_block, near.dtype, near.device, form
    bound = matrix.geometry.bound
    if key not in bound:
        bound[key] = _bind(cut, matrix, near, form, is_half)
    fold, fold_spilled = bound[key]
    parts, is_whole = staging(cut, dim, near), entry_scale is None or entry_scale.dtype == torch.float32
    weights = (entry_scale, None) if is_whole else (None, entry_scale)
    fold(near, dense, *weights, _resident(entry_index, near), *_packed_arguments(packed, near), parts, out)
    fold_spilled(parts, out)


class _Form(NamedTuple):
    kind: str
    dim: int
    columns: int
    is_aligned: int
    num_near: int
    num_far: int
    split: int
    num_heads: int
    is_added: int


def _bind(cut: Segments, matrix, near: torch.Tensor, form: _Form, is_half: bool) -> tuple[BoundKernel, BoundKernel]:
    suffix, dim = SUFFIX[near.dtype], form.dim
    row_scale, column_scale = _resident(matrix.row_scale, near), _resident(matrix.column_scale, near)
    fold = kernel("aggregation", f"aggregate_{form.kind}{suffix}").bind(
        (cut.num_blocks, column_blocks(dim, form.columns)), (cut.threads,), *entry_arguments(cut, matrix, near),
        row_scale, column_scale, LATER, LATER, form.num_near, form.num_far, form.split, dim, form.is_aligned, LATER,
        LATER, LATER, form.num_heads, LATER, LATER, LATER, LATER, form.is_added, LATER, LATER)
    spilled = kernel("aggregation", f"aggregate_spilled_{suffix}").bind(
        spilled_grid(cut, dim), (THREADS,), *spilled_arguments(cut, dim, near), None if is_half else row_scale,
        form.is_aligned, form.is_added, LATER, LATER)
    return fold, spilled


def lane_columns(dim: int, entry_scale: torch.Tensor | None, itemsize: int) -> int:
    """Columns per lane: a pair; or 16 bytes, if a row has at least four such lanes and every head whole lanes.

    With fewer lanes per row, a block has so many sub-warps that most of its work is adding their parts of a hub's row.
    The choice decides the order of a row's sum, so it must not depend on addresses.
    """
    num_heads = 1 if entry_scale is None else entry_scale.shape[1]
    is_whole = dim // num_heads * itemsize % LANE_BYTES == 0 or (num_heads == 1 and dim % PAIR)
    is_wide = is_whole and dim * itemsize > (LEAST_WIDE_LANES - 1) * LANE_BYTES
    return LANE_BYTES // itemsize if is_wide else PAIR


def _kind(num_heads: int, packed) -> str:
    if packed is not None and len(packed):
        return "packed_"
    return "heads_" if num_heads > 1 else ""


def _resident(array: np.ndarray | None, like: torch.Tensor) -> torch.Tensor | None:
    return None if array is None else on_device(array, like)


def _packed_arguments(packed, like: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    if packed is None or not len(packed):
        return None, None, None, None
    return (torch.as_tensor(packed.message, device=like.device), on_device(packed.bit_width, like),
            on_device(packed.payload_offset, like), on_device(packed.parameter_offset, like))


def entry_dtype(rows: torch.Tensor) -> torch.dtype:
    return rows.dtype


THREADS = 256


def fold_segments(file: str, name: str, cut: Segments, matrix: SparseRows, like: torch.Tensor, dim: int,
                  *arguments, lane_columns: int = PAIR) -> None:
    """Start a kernel over all blocks of items and columns; `arguments` follow the items and the matrix."""
    over_entries(file, name, (cut.num_blocks, column_blocks(dim, lane_columns)), cut, matrix, like, *arguments)


def over_entries(file: str, name: str, grid: tuple[int, ...], cut: Segments, matrix: SparseRows, like: torch.Tensor,
                 *arguments) -> None:
    kernel(file, name)(grid, (cut.threads,), *entry_arguments(cut, matrix, like), *arguments)


def entry_arguments(cut: Segments, matrix: SparseRows, like: torch.Tensor) -> tuple:
    return (on_device(cut.offset, like), on_device(cut.block_row, like), cut.start, cut.stop, cut.items_a_block,
            on_device(matrix.begin, like), on_device(matrix.end, like), on_device(matrix.indices, like),
            matrix.num_self)


def fold_spilled(file: str, name: str, cut: Segments, like: torch.Tensor, dim: int, *arguments) -> None:
    """Start the kernel for shared rows, one thread per pair of columns; `arguments` follow the rows and dim."""
    kernel(file, name)(spilled_grid(cut, dim), (THREADS,), *spilled_arguments(cut, dim, like), *arguments)


def spilled_grid(cut: Segments, dim: int) -> tuple[int]:
    return (-(-len(cut.spilled_row) * -(-dim // 2) // THREADS),)


def spilled_arguments(cut: Segments, dim: int, like: torch.Tensor) -> tuple:
    spilled = (on_device(array, like) for array in (cut.spilled_row, cut.spilled_first, cut.spilled_last))
    return len(cut.spilled_row), *spilled, dim


def staging(cut: Segments, dim: int, like: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty((cut.num_slots, dim), dtype=dtype, device=like.device)


def maximum(matrix, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
