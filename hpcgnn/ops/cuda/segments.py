"""Geometry of the edge-parallel kernels: equal shares of a matrix's entries a block, and the rows that blocks share.

Plain NumPy, computed once a matrix and a span of its rows, and kept by the matrix; kernels/segments.cuh states how the
kernels read it.

This module chooses kernels for a storage type: the suffix of their names, and how many columns a load may take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from hpcgnn.ops.cuda.resident import make_resident, resident

WARP = 32
LARGE = 1 << 20                    # items from which on a device has blocks enough of the larger shape
SMALL_SHAPE, LARGE_SHAPE = (4, 64), (8, 128)     # warps a block, items a warp: HalfGNN asks for 64 edges at least
LANES_ROW, WARP_ROW = 16, 512      # entries of the longest rows that 8 lanes take, and a warp
PAIR = 2                           # columns of a lane, where it has no more
LANE_COLUMNS = 8                   # that a lane takes at a time, where a sub-warp shares a row


@dataclass(frozen=True)
class Segments:
    """Items start .. stop - 1 of a span of rows, cut into blocks of equally many.

    The items of a row are its implied self-loop, then its entries; a row without either has one item that adds nothing,
    so that every row is stored by a thread that meets it.

    Attributes
    ----------
    offset : (num_rows + 1,) int64              row v of the matrix has the items offset[v] .. offset[v + 1] - 1
    start, stop : int
    threads, items_a_block : int
    block_row : (num_blocks + 1,) int32         row of each block's first item; then that of the last item of all
    spilled_row, spilled_first, spilled_last : (num_spilled,) int32     rows that lie in more than one block, and the
                                                first and the last of their blocks
    """

    offset: np.ndarray
    start: int
    stop: int
    threads: int
    items_a_block: int
    block_row: np.ndarray
    spilled_row: np.ndarray
    spilled_first: np.ndarray
    spilled_last: np.ndarray

    def __post_init__(self):
        make_resident(self, "offset", "block_row", "spilled_row", "spilled_first", "spilled_last")

    @property
    def num_blocks(self) -> int:
        return len(self.block_row) - 1

    @property
    def num_slots(self) -> int:
        """Count the partial results that blocks hand on, two a block: of the rows that it begins and ends with."""
        return 2 * self.num_blocks if len(self.spilled_row) else 0


class Rows(Protocol):
    """Hold what decides how the rows of a sparse matrix are cut; see `hpcgnn.ops.aggregation.SparseRows`."""

    begin: np.ndarray
    end: np.ndarray
    num_self: int


def item_offsets(matrix: Rows) -> np.ndarray:
    """Return where the items of each row begin, (num_rows + 1,) int64."""
    num_items = matrix.end - matrix.begin
    num_items[:matrix.num_self] += 1
    return np.concatenate([[0], np.cumsum(np.maximum(num_items, 1))]).astype(np.int64)


def block_shape(num_items: int) -> tuple[int, int]:
    """Warps a block and items a warp: few small blocks would leave processors idle, many would hand on more rows."""
    return LARGE_SHAPE if num_items >= LARGE else SMALL_SHAPE


def cut(offset: np.ndarray, first_row: int, last_row: int, warps: int, items_a_warp: int) -> Segments:
    """Return segments of the rows first_row .. last_row - 1, of which there is one at least."""
    start, stop = int(offset[first_row]), int(offset[last_row])
    items_a_block = warps * items_a_warp
    first_item = np.arange(start, stop, items_a_block)
    row = (np.searchsorted(offset, np.append(first_item, stop - 1), side="right") - 1).astype(np.int32)
    begins_inside = offset[row[1:-1]] < first_item[1:]      # the block before holds items of this row too
    first_block = (offset[row[1:-1][begins_inside]] - start) // items_a_block
    spilled, index = np.unique(row[1:-1][begins_inside], return_index=True)
    last_block = (offset[spilled + 1] - 1 - start) // items_a_block
    return Segments(offset, start, stop, warps * WARP, items_a_block, row, spilled,
                    first_block[index].astype(np.int32), last_block.astype(np.int32))


class Geometry:
    """Says how a device works through one matrix: the segments of each span of its rows, and its rows by their length.

    Each is computed at its first use. The matrix holds its Geometry, which holds what it read of the matrix alone.

    Parameters
    ----------
    matrix : Rows

    Attributes
    ----------
    bound : dict      launches over this matrix whose arguments are checked, by what they differ in; see `Kernel.bind`
    """

    def __init__(self, matrix: Rows):
        self.offset = resident(item_offsets(matrix))
        self._begin, self._end = matrix.begin, matrix.end
        self._segments: dict[tuple[int, int], Segments] = {}
        self.bound: dict[tuple, tuple] = {}

    def segments(self, first_row: int, last_row: int) -> Segments:
        """Return the segments of the rows first_row .. last_row - 1, of which there is one at least."""
        span = first_row, last_row
        if span not in self._segments:
            num_items = int(self.offset[last_row] - self.offset[first_row])
            self._segments[span] = cut(self.offset, *span, *block_shape(num_items))
        return self._segments[span]

    @cached_property
    def rows_by_length(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows that 8 lanes take, those that a warp takes, and those that a block takes: int32, ascending."""
        kind = np.searchsorted([LANES_ROW, WARP_ROW], self._end - self._begin)
        lanes, warp, block = (resident(np.flatnonzero(kind == k).astype(np.int32)) for k in range(3))
        return lanes, warp, block


def sub_warp(num_loads: int) -> int:
    """Count the lanes that share a product of so many loads."""
    return min(WARP, 1 << max(num_loads - 1, 0).bit_length())


def lanes_a_row(dim: int) -> int:
    """Count the lanes of the sub-warp that shares a row of so many columns."""
    return sub_warp(-(-dim // LANE_COLUMNS))


def column_blocks(dim: int, lane_columns: int = PAIR) -> int:
    """Count the blocks of columns that a grid has beside its blocks of items: those of a warp."""
    return -(-dim // (lane_columns * WARP))


SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def alignment(*rows: torch.Tensor | None) -> int:
    """Elements that one load may take at once wherever it begins: the largest power of two that every given matrix's
    address and number of columns are a multiple of, at most 16 bytes.
    """
    elements = 16
    for matrix in rows:
        if matrix is not None:
            size = matrix.itemsize
            multiple = 16 | matrix.shape[1] * size | matrix.data_ptr()
            elements = min(elements, (multiple & -multiple) // size)
    return elements
