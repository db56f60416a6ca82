"""HalfGNN's ablations on a device: SpMM and SDDMM without one of the choices that `hpcgnn.ops.cuda` makes.

Nothing is timed here. Launches kernels/ablations.cu, which is of use to nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hpcgnn.ops.aggregation import SparseRows
from hpcgnn.ops.cuda import aggregation, attention
from hpcgnn.ops.cuda.folds import THREADS, fold_segments
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.ops.cuda.segments import PAIR, WARP, column_blocks
from hpcgnn.ops.cuda.storage import SUFFIX

HAVING = (torch.float32, torch.float16)      # storages that the kernels exist for


def spmm_ablations(matrix: SparseRows, rows: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Return products (num_rows, dim) of the matrix and rows (n, dim), by what is different; none for bfloat16, or rows
    of no multiple of 16 bytes.

    Reference: HalfGNN, Fig. 9 (atomic writes) and Fig. 10 (a warp a row); pairs of columns are its half2.
    """
    if rows.dtype not in HAVING or rows.shape[1] * rows.itemsize % aggregation.LANE_BYTES:
        return {}
    return {"pairs a lane": lambda: by_pairs(matrix, rows), "atomic writes": lambda: atomically(matrix, rows),
            "a warp a row": lambda: by_row(matrix, rows)}


def sddmm_ablations(matrix: SparseRows, left: torch.Tensor,
                    right: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Return products of entries' ends (num_entries, 1) by columns a load, of left and right (n, dim) float16; none of
    other storages.

    Reference: HalfGNN, Fig. 8.
    """
    if left.dtype != torch.float16 or left.shape[1] * left.itemsize % aggregation.LANE_BYTES:
        return {}
    return {f"half{vector}": lambda vector=vector: attention.sampled_products(matrix, left, right, 1, vector)
            for vector in (2, 4)}


def by_pairs(matrix: SparseRows, rows: torch.Tensor) -> torch.Tensor:
    """Two columns a lane."""
    out = torch.empty(matrix.num_rows, rows.shape[1], dtype=rows.dtype, device=rows.device)
    aggregation.launch(matrix.geometry.segments(0, matrix.num_rows), matrix, rows, None, out, False, False,
                       columns=PAIR)
    return out


def atomically(matrix: SparseRows, rows: torch.Tensor) -> torch.Tensor:
    """Parts of rows added to memory; their order, and so the last bits, are those of no other call."""
    cut, dim = matrix.geometry.segments(0, matrix.num_rows), rows.shape[1]
    out = torch.zeros(matrix.num_rows, dim, dtype=rows.dtype, device=rows.device)
    fold_segments("ablations", f"spmm_atomic_{SUFFIX[rows.dtype]}", cut, matrix, rows, dim,
                  on_device(matrix.row_scale, rows), rows, len(rows), dim, out,
                  lane_columns=aggregation.LANE_BYTES // rows.itemsize)
    return out


def by_row(matrix: SparseRows, rows: torch.Tensor) -> torch.Tensor:
    """A warp for a row and 64 columns, however long the row is."""
    out = torch.empty(matrix.num_rows, rows.shape[1], dtype=rows.dtype, device=rows.device)
    arrays = (on_device(array, rows) for array in (matrix.begin, matrix.end, matrix.indices))
    kernel("ablations", f"spmm_by_row_{SUFFIX[rows.dtype]}")(
        (-(-matrix.num_rows // (THREADS // WARP)), column_blocks(rows.shape[1])), (THREADS,), *arrays, matrix.num_rows,
        on_device(matrix.row_scale, rows), rows, rows.shape[1], out)
    return out
