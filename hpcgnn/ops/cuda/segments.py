"""Geometry of the edge-parallel kernels: equal shares of a matrix's entries per block, and the rows that blocks share.

For example, with 256 items per block and a row of 100 items before one of 300, block 0 has the first row and 156 items
of the second, which is "spilled": block 1 has the rest. Computed once per matrix and span of rows; kernels/segments.cuh
states how kernels read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from hpcgnn.ops.resident import make_resident, resident

WARP = 32
LARGE = 1 << 20                    # from this number of items on, the larger shape gives a device enough blocks
SMALL_SHAPE, LARGE_SHAPE = (4, 64), (8, 128)     # warps per block, items per warp: HalfGNN asks for at least 64 edges
LANES_ROW, WARP_ROW = 16, 512      # largest number of entries in a row for 8 lanes, and in a row for one warp
PAIR = 2                           # columns per lane, unless a lane loads 16 bytes at a time
LANE_COLUMNS = 8                   # columns that a lane takes at a time, if a sub-warp shares a row


@dataclass(frozen=True)
class Segments:
    """Items start .. stop - 1 of a span of rows, cut into blocks with equal numbers of items.

    The items of a row are its implied self-loop, then its entries. A row without either has one item that adds nothing,
    so that some thread stores every row.

    offset : (num_rows + 1,) int64              row v of the matrix has the items offset[v] .. offset[v + 1] - 1
    block_row : (num_blocks + 1,) int32         row of each block's first item; then the row of the very last item
    spilled_row, spilled_first, spilled_last : (num_spilled,) int32     rows that lie in several blocks, and their first
                                                and last blocks
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
        return 2 * self.num_blocks if len(self.spilled_row) else 0


def item_offsets(matrix) -> np.ndarray:
    num_items = matrix.end - matrix.begin
    num_items[:matrix.num_self] += 1
    return np.concatenate([[0], np.cumsum(np.maximum(num_items, 1))]).astype(np.int64)


def block_shape(num_items: int) -> tuple[int, int]:
    """Warps per block and items per warp: small ones for few items, so that no processor idles; else large ones, which
    share fewer rows."""
    return LARGE_SHAPE if num_items >= LARGE else SMALL_SHAPE


def cut(offset: np.ndarray, first_row: int, last_row: int, warps: int, items_a_warp: int) -> Segments:
    """Segments of the rows first_row .. last_row - 1, at least one row."""
    # Cut the items at equal distances, regardless of rows.
    start, stop = int(offset[first_row]), int(offset[last_row])
    items_a_block = warps * items_a_warp
    first_item = np.arange(start, stop, items_a_block)
    row = (np.searchsorted(offset, np.append(first_item, stop - 1), side="right") - 1).astype(np.int32)
    begins_inside = offset[row[1:-1]] < first_item[1:]      # the block before also holds items of this row
    # If a block begins inside a row, the row is spilled: it began in an earlier block.
    first_block = (offset[row[1:-1][begins_inside]] - start) // items_a_block
    spilled, index = np.unique(row[1:-1][begins_inside], return_index=True)
    last_block = (offset[spilled + 1] - 1 - start) // items_a_block
    return Segments(offset, start, stop, warps * WARP, items_a_block, row, spilled,
                    first_block[index].astype(np.int32), last_block.astype(np.int32))


class Geometry:
    """How a device works through one matrix: segments of each span of rows, and rows by length, computed at first use.

    bound : dict      launches over this matrix with checked arguments; see `Kernel.bind`
    """

    def __init__(self, matrix):      # a SparseRows
        self.offset = resident(item_offsets(matrix))
        self._begin, self._end = matrix.begin, matrix.end
        self._segments: dict[tuple[int, int], Segments] = {}
        self.bound: dict[tuple, tuple] = {}

    def segments(self, first_row: int, last_row: int) -> Segments:
        span = first_row, last_row
        if span not in self._segments:
            num_items = int(self.offset[last_row] - self.offset[first_row])
            self._segments[span] = cut(self.offset, *span, *block_shape(num_items))
        return self._segments[span]

    @cached_property
    def rows_by_length(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows for 8 lanes, rows for a warp, and rows for a block: int32, ascending."""
        kind = np.searchsorted([LANES_ROW, WARP_ROW], self._end - self._begin)
        lanes, warp, block = (resident(np.flatnonzero(kind == k).astype(np.int32)) for k in range(3))
        return lanes, warp, block


def sub_warp(num_loads: int) -> int:
    return min(WARP, 1 << max(num_loads - 1, 0).bit_length())


def lanes_a_row(dim: int) -> int:
    return sub_warp(-(-dim // LANE_COLUMNS))


def column_blocks(dim: int, lane_columns: int = PAIR) -> int:
    return -(-dim // (lane_columns * WARP))


SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def alignment(*rows: torch.Tensor | None) -> int:
    """Elements that one load may take from every given matrix, at most 16 bytes.

    It is the largest power of two that divides every matrix's address and number of columns.
    """
    elements = 16
    for matrix in rows:
        if matrix is not None:
            size = matrix.itemsize
            multiple = 16 | matrix.shape[1] * size | matrix.data_ptr()
            elements = min(elements, (multiple & -multiple) // size)
    return elements
