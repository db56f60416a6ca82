"""Launch of the folds of kernels/segments.cuh: over the blocks of a matrix's entries, then over the rows they share."""

from __future__ import annotations

import torch

from hpcgnn.ops.aggregation import SparseRows
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.ops.cuda.segments import PAIR, Segments, column_blocks

THREADS = 256


def fold_segments(file: str, name: str, cut: Segments, matrix: SparseRows, like: torch.Tensor, dim: int,
                  *arguments, lane_columns: int = PAIR) -> None:
    """Start a kernel over all blocks of items and of columns, of which a lane has `lane_columns`; `arguments` follow
    the items and the matrix.
    """
    over_entries(file, name, (cut.num_blocks, column_blocks(dim, lane_columns)), cut, matrix, like, *arguments)


def over_entries(file: str, name: str, grid: tuple[int, ...], cut: Segments, matrix: SparseRows, like: torch.Tensor,
                 *arguments) -> None:
    """Start a kernel whose first parameters are the items and the matrix."""
    kernel(file, name)(grid, (cut.threads,), *entry_arguments(cut, matrix, like), *arguments)


def entry_arguments(cut: Segments, matrix: SparseRows, like: torch.Tensor) -> tuple:
    """Return the first arguments of such a kernel."""
    return (on_device(cut.offset, like), on_device(cut.block_row, like), cut.start, cut.stop, cut.items_a_block,
            on_device(matrix.begin, like), on_device(matrix.end, like), on_device(matrix.indices, like),
            matrix.num_self)


def fold_spilled(file: str, name: str, cut: Segments, like: torch.Tensor, dim: int, *arguments) -> None:
    """Start the kernel that follows, a thread a pair of columns; `arguments` follow the rows and dim."""
    kernel(file, name)(spilled_grid(cut, dim), (THREADS,), *spilled_arguments(cut, dim, like), *arguments)


def spilled_grid(cut: Segments, dim: int) -> tuple[int]:
    """Return the blocks of that kernel."""
    return (-(-len(cut.spilled_row) * -(-dim // 2) // THREADS),)


def spilled_arguments(cut: Segments, dim: int, like: torch.Tensor) -> tuple:
    """Return its first arguments."""
    spilled = (on_device(array, like) for array in (cut.spilled_row, cut.spilled_first, cut.spilled_last))
    return len(cut.spilled_row), *spilled, dim


def staging(cut: Segments, dim: int, like: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Make room, uninitialized, where blocks leave their parts of the rows that they share."""
    return torch.empty((cut.num_slots, dim), dtype=dtype, device=like.device)
