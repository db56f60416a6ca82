"""Sums by ranges of columns, where rows do not fit into the memory that a run may use.

A sum reads rows in the order of the edges. If they lie on a disk, each of these reads moves a whole page, so all that
is read at a time must lie in memory. Columns do not meet in a sum: each range of them is a table of its own, which is
copied, read back from the disk if it went there, summed, and joined with the others. The sums are the same to the last
bit. Example: with room for 100 columns, rows of 256 are summed as 88, 88 and 80.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from hpcgnn.ops.aggregation import SparseRows, multiply
from hpcgnn.ops.arena import empty, in_memory, row_bytes_at_once, set_aside
from hpcgnn.ops.evictions import columns_of_a_range
from hpcgnn.ops.spans import short_blocks


class ColumnRange(NamedTuple):
    """Columns first .. first + rows.shape[1] - 1 of a table."""

    first: int
    rows: torch.Tensor


def columns_at_once(rows: torch.Tensor) -> int | None:
    """Number of columns of `rows` (n, dim) to sum at a time, a multiple of 8, the same on all ranks; None: all."""
    if rows.device.type != "cpu":
        return None
    width = columns_of_a_range(row_bytes_at_once(), rows.shape[1], rows.itemsize)
    return None if width == rows.shape[1] else width


def cut(rows: torch.Tensor, width: int) -> list[ColumnRange]:
    """Copies of the columns of `rows`, ready to go to the disk, the last one first, as it is read last."""
    num_rows, dim = rows.shape
    ranges = [ColumnRange(first, empty((num_rows, min(width, dim - first)), rows.dtype))
              for first in range(0, dim, width)]
    # By block of rows, so that a table on a disk is read once.
    for start, stop in short_blocks(num_rows):
        for first, columns in ranges:
            columns[start:stop] = rows[start:stop, first:first + columns.shape[1]]
    for one in reversed(ranges):
        set_aside(one.rows)
    return ranges


def sum_ranges(matrix: SparseRows, ranges: list[ColumnRange],
               far_of: Callable[[ColumnRange], torch.Tensor] | None = None) -> torch.Tensor:
    """`multiply` of near rows in ranges, which leave the list; far_of(range) makes its columns of the far rows."""
    dim, dtype, sums = sum(one.rows.shape[1] for one in ranges), ranges[0].rows.dtype, []
    while ranges:
        sums.append(_summed(matrix, ranges.pop(0), far_of))
    return join(sums, empty((matrix.num_rows, dim), dtype))


def _summed(matrix: SparseRows, one: ColumnRange,
            far_of: Callable[[ColumnRange], torch.Tensor] | None) -> ColumnRange:
    with in_memory(one.rows):
        if far_of is None:
            sums = multiply(matrix, one.rows)
        else:
            far = far_of(one)
            with in_memory(far):
                sums = multiply(matrix, one.rows, far)
    return ColumnRange(one.first, set_aside(sums))


def join(ranges: list[ColumnRange], out: torch.Tensor) -> torch.Tensor:
    """Write ranges to `out`; the list is empty afterwards."""
    for start, stop in short_blocks(len(out)):
        for first, columns in ranges:
            out[start:stop, first:first + columns.shape[1]] = columns[start:stop]
    ranges.clear()
    return out


def product(matrix: SparseRows, near: torch.Tensor, far: torch.Tensor | None = None) -> torch.Tensor:
    """`multiply` of near rows that are in memory if they fit; by ranges of columns if nothing else does."""
    width = columns_at_once(near)
    if width is None:
        with in_memory(near):
            return multiply(matrix, near, far)
    ranges = cut(set_aside(near), width)
    if far is None:
        return sum_ranges(matrix, ranges)
    others = cut(set_aside(far), width)
    return sum_ranges(matrix, ranges, lambda _: others.pop(0).rows)
