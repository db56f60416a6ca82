"""Device side of `hpcgnn.ops.aggregation`: edge-parallel SpMM after HalfGNN. Contracts are already checked.

kernels/aggregation.cuh has the maths, kernels/segments.cuh the threads, segments.py the geometry.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.ops.cuda.folds import fold_segments, fold_spilled, staging
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.ops.cuda.segments import PAIR, Segments
from hpcgnn.ops.cuda.storage import SUFFIX, alignment

LANE_BYTES = 16           # that a lane loads at once, where rows allow it
LEAST_WIDE_LANES = 4      # of a row


def multiply(matrix, near: torch.Tensor, far, out: torch.Tensor, tasks: np.ndarray, is_added: bool) -> None:
    """Matrix times rows stored in `out`, or added to it, for the rows from the first to the last that `tasks` name."""
    first, last = int(tasks[0]), int(tasks[-1])
    if first < last and near.shape[1]:
        launch(matrix.geometry.segments(first, last), matrix, near, far, out, is_added, _is_half(matrix, near),
               None if matrix.entry_scale is None else on_device(matrix.entry_scale, near)[:, None])


def multiply_weighted(matrix, near: torch.Tensor, entry_scale: torch.Tensor, entry_index: np.ndarray | None,
                      out: torch.Tensor) -> None:
    """Matrix with weights of its entries times rows, stored in `out`."""
    if out.numel():
        launch(matrix.geometry.segments(0, matrix.num_rows), matrix, near, None, out, False, _is_half(matrix, near),
               entry_scale, entry_index)


def _is_half(matrix, near: torch.Tensor) -> bool:
    return matrix.has_half_sums and near.dtype != torch.float32


def launch(cut: Segments, matrix, near: torch.Tensor, far, out: torch.Tensor, is_added: bool, is_half: bool,
           entry_scale: torch.Tensor | None = None, entry_index: np.ndarray | None = None,
           columns: int | None = None) -> None:
    """The blocks' fold, then that of the rows that several blocks share, in float32 or half arithmetic.

    Parameters
    ----------
    cut : Segments                    the rows, one at least, and their blocks
    is_half : bool                    for near of bfloat16 or float16
    columns : int                     of a lane, where it is not to be `lane_columns`
    others : as in `hpcgnn.ops.aggregation`
    """
    dim, suffix, parts = near.shape[1], SUFFIX[near.dtype], staging(cut, near.shape[1], near)
    dense, packed = (far, None) if far is None or isinstance(far, torch.Tensor) else (None, far)
    columns = columns or lane_columns(dim, entry_scale, near.itemsize)
    is_aligned = int(alignment(near, dense, out) >= columns)
    if columns > PAIR and not is_aligned:      # of rows inside of some other memory: as slow as it is rare
        aside = [rows if rows is None or alignment(rows) >= columns else rows.clone() for rows in (near, dense, out)]
        launch(cut, matrix, aside[0], aside[1] if packed is None else packed, aside[2], is_added, is_half, entry_scale,
               entry_index)
        if aside[2] is not out:
            out.copy_(aside[2])
        return
    row_scale, column_scale = _resident(matrix.row_scale, near), _resident(matrix.column_scale, near)
    num_heads = 1 if entry_scale is None else entry_scale.shape[1]
    split = len(near) if matrix.split is None else matrix.split
    kind = f"{'' if columns == PAIR else 'wide_'}{_kind(num_heads, packed)}{'half_' if is_half else ''}"
    fold_segments("aggregation", f"aggregate_{kind}{suffix}", cut, matrix, near, dim, row_scale, column_scale,
                  near.detach(), None if dense is None else dense.detach(), split, dim, is_aligned,
                  None if entry_scale is None else entry_scale.detach(), _resident(entry_index, near), num_heads,
                  *_packed_arguments(packed, near), int(is_added), parts, out, lane_columns=columns)
    fold_spilled("aggregation", f"aggregate_spilled_{suffix}", cut, near, dim, None if is_half else row_scale,
                 is_aligned, int(is_added), parts, out)


def lane_columns(dim: int, entry_scale: torch.Tensor | None, itemsize: int) -> int:
    """Count the columns that a lane takes: those of 16 bytes, where heads have a multiple of them and rows four at
    least, or a pair. With fewer lanes a row a block has so many sub-warps that adding their parts of a hub's row is
    most of its work.

    It decides in which order a row is summed, so no address does.
    """
    head_dim = dim if entry_scale is None else dim // entry_scale.shape[1]
    is_wide = head_dim * itemsize % LANE_BYTES == 0 and dim * itemsize >= LEAST_WIDE_LANES * LANE_BYTES
    return LANE_BYTES // itemsize if is_wide else PAIR


def _kind(num_heads: int, packed) -> str:
    if packed is not None and len(packed):
        return "packed_"
    return "heads_" if num_heads > 1 else ""


def _resident(array: np.ndarray | None, like: torch.Tensor) -> torch.Tensor | None:
    return None if array is None else on_device(array, like)


def _packed_arguments(packed, like: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Return the kernel's arguments; every exchange writes the message anew, so the device keeps its layout only."""
    if packed is None or not len(packed):
        return None, None, None, None
    return (torch.as_tensor(packed.message, device=like.device), on_device(packed.bit_width, like),
            on_device(packed.payload_offset, like), on_device(packed.parameter_offset, like))
