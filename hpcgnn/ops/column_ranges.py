"""Sums by ranges of columns, where rows do not fit into the memory that a run may use.

A sum reads rows in the order of the edges. If they lie on a disk, each of these reads moves a whole page, so all that
is read at a time must lie in memory. Columns do not meet in a sum: each range of them is a table of its own, which is
copied, read back from the disk if it went there, summed, and joined with the others. The sums are the same to the last
bit. Example: with room for 96 columns, rows of 256 are summed as 96, 96 and 64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from hpcgnn.ops.aggregation import SparseRows, multiply
from hpcgnn.ops.arena import empty, in_memory, row_bytes_at_once, set_aside
from hpcgnn.ops.evictions import columns_of_a_range


class ColumnRange(NamedTuple):
    """Columns first .. first + rows.shape[1] - 1 of a table."""

    first: int
    rows: torch.Tensor


def columns_at_once(rows: torch.Tensor) -> int | None:
    """Number of columns of `rows` (n, dim) to sum at a time, a multiple of 16, the same on all ranks; None: all."""
    if rows.device.type != "cpu":
        return None
    width = columns_of_a_range(row_bytes_at_once(), rows.shape[1], rows.itemsize)
    return None if width == rows.shape[1] else width


def cut(rows: torch.Tensor, width: int) -> list[ColumnRange]:
    """Copies of the columns of `rows`, ready to go to the disk, the last one first, as it is read last."""
    ranges = [columns_from(rows, first, width) for first in range(0, rows.shape[1], width)]
    for one in reversed(ranges):
        set_aside(one.rows)
    return ranges


def columns_from(rows: torch.Tensor, first: int, width: int) -> ColumnRange:
    chosen = rows[:, first:first + width]
    return ColumnRange(first, empty(tuple(chosen.shape), rows.dtype).copy_(chosen))


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
        sums = multiply(matrix, one.rows, None if far_of is None else far_of(one))
    return ColumnRange(one.first, set_aside(sums))


def join(ranges: list[ColumnRange], out: torch.Tensor) -> torch.Tensor:
    """Write ranges to `out`, and free each."""
    while ranges:
        first, rows = ranges.pop(0)
        out[:, first:first + rows.shape[1]] = rows
    return out


def product(matrix: SparseRows, near: torch.Tensor, far: torch.Tensor | None = None) -> torch.Tensor:
    """`multiply` of near rows that are in memory if they fit; by ranges of columns if nothing else does."""
    width = columns_at_once(near)
    if width is None:
        with in_memory(near):
            return multiply(matrix, near, far)
    if far is None:
        return sum_ranges(matrix, cut(set_aside(near), width))
    set_aside(far)
    return sum_ranges(matrix, cut(set_aside(near), width), lambda one: columns_from(far, one.first, width).rows)
