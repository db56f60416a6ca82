"""Shared by the accelerators that work row by row: sizes of CSR rows, columns of nonzeros, a row cache, requests.

Only the number of nonzeros of each slice is known, so they are spread evenly in it. Requests that follow each other in
DRAM are joined, and work is cut into runs of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from hpcgnn._ext import row_cache as kernels
from hpcgnn.accelerators.schedule import KIND, NO_REQUESTS, Requests
from hpcgnn.accelerators.workload import NUM_SLICES, FeatureCounts, Product, Workload
from hpcgnn.errors import ConfigError

Count = TypeVar("Count", np.ndarray, int)


def compressed_start(nonzeros: np.ndarray, bit_width: int, id_bytes: int) -> np.ndarray:
    """Byte where each CSR row begins, then the number of all bytes, (num_rows + 1,) int64.

    A row has an offset, and an id and a value per nonzero; `nonzeros` is (num_rows,) int64.
    """
    return starts_of(id_bytes + id_bytes * nonzeros + size_in_bytes(nonzeros, bit_width))


def result_start(workload: Workload, index: int, bit_width: int, id_bytes: int) -> np.ndarray:
    """Byte where each row of the result of product `index` begins, then the end, (num_nodes + 1,) int64.

    Rows are stored as the next product reads them; dense after the last one.
    """
    after = rows_after(workload, index)
    return dense_start(workload, index, bit_width) if after is None else compressed_start(after.row_nonzeros(),
                                                                                          bit_width, id_bytes)


def dense_start(workload: Workload, index: int, bit_width: int) -> np.ndarray:
    row_bytes = size_in_bytes(result_dim(workload.products[index]), bit_width)
    return starts_of(np.full(workload.num_nodes, row_bytes, np.int64))


def rows_after(workload: Workload, index: int) -> FeatureCounts | None:
    """The rows that the next product reads; None after the last one, or if they have other columns."""
    after = workload.products[index + 1:index + 2]
    return after[0].rows if after and after[0].rows.dim == result_dim(workload.products[index]) else None


def starts_of(sizes: np.ndarray) -> np.ndarray:
    start = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=start[1:])
    return start


def places_within(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of counts[0] + counts[1] + ... things in groups, the group of each, and its place in the group."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - (np.cumsum(counts) - counts)[group]


def block_start_of(group_start: np.ndarray, rows_a_block: int) -> np.ndarray:
    """First row of each block within a group of rows, then the number of all rows; group_start is (num_groups + 1,)."""
    group, place = places_within(-(-np.diff(group_start) // rows_a_block))
    return np.append(group_start[group] + place * rows_a_block, group_start[-1])


KNUTH = 2654435761      # 2^32 over the golden ratio: consecutive numbers are spread over all of 32 bits


def slice_bounds(rows: FeatureCounts) -> np.ndarray:
    """First column of each slice, then the number of all columns, (NUM_SLICES + 1,) int64."""
    return np.minimum(np.arange(NUM_SLICES + 1, dtype=np.int64) * rows.slice_dim, rows.dim)


def nonzeros_before(nonzeros: np.ndarray, rows: FeatureCounts, column: np.ndarray | int) -> np.ndarray:
    """Number of nonzeros before each column, (..., n) int64, if they are spread evenly in a slice; rounded down.

    nonzeros : (..., NUM_SLICES) int         of a row, or of several rows together
    column : (n,) int64                      from 0 to dim
    """
    bounds = slice_bounds(rows)
    width = np.diff(bounds)
    covered = np.clip(np.atleast_1d(column)[:, None] - bounds[:-1], 0, width)
    counted = nonzeros[..., None, :].astype(np.int64) * covered // np.maximum(width, 1)
    return counted.sum(axis=-1)


def spread_columns(rows: FeatureCounts, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row and distinct columns of the nonzeros of rows first to last - 1, (num_values,) int64, rows ascending.

    The columns are evenly spaced in a slice, from a column that a hash of row and slice draws. Assumed: since the true
    columns are unknown, no column is needed by more rows than another.
    """
    bounds = slice_bounds(rows)
    width = np.tile(np.diff(bounds), last - first)
    count = rows.nonzeros[first:last].astype(np.int64).ravel()
    index = np.arange(first * NUM_SLICES, last * NUM_SLICES, dtype=np.int64)
    offset = (index * KNUTH % 2**32) * width >> 32
    slot, place = places_within(count)
    within = (offset[slot] + place * width[slot] // count[slot]) % width[slot]
    return first + slot // NUM_SLICES, np.tile(bounds[:-1], last - first)[slot] + within


class RowCache:
    """A fully associative cache, empty at first, that keeps the rows used last within `capacity` bytes.

    num_bytes, (num_rows,) int64, is per row; a row larger than the cache is not kept. Raises ConfigError for more rows
    than 32-bit ids can name.
    """

    def __init__(self, num_bytes: np.ndarray, capacity: int) -> None:
        if len(num_bytes) >= np.iinfo(np.int32).max:
            raise ConfigError(f"a cache can name {np.iinfo(np.int32).max - 1} rows, and there are {len(num_bytes)}")
        self.num_bytes, self.capacity, self.held_bytes = np.ascontiguousarray(num_bytes, np.int64), capacity, 0
        self._newer = np.full(len(num_bytes) + 1, -1, np.int32)
        self._older = np.full(len(num_bytes) + 1, -1, np.int32)
        self._newer[-1] = self._older[-1] = len(num_bytes)

    def missed(self, row: np.ndarray) -> np.ndarray:
        missed = np.zeros(len(row), np.uint8)
        self.held_bytes = kernels.use_rows(np.ascontiguousarray(row, np.int32), self.num_bytes, self.capacity,
                                           self.held_bytes, self._newer, self._older, missed)
        return missed.astype(bool)


# Most work in a run of blocks: each unit takes some hundred bytes while its requests are made.
WORK_A_RUN = 1 << 19


def size_in_bytes(num_values: Count, bit_width: int) -> Count:
    return -(-num_values * bit_width // 8)


def result_dim(product: Product) -> int:
    """Columns of a product's result: the aggregated ones (GraphSage's others are added to them), or all if none is."""
    return product.aggregated_dim or product.combined_dim


def own_dim(product: Product) -> int:
    return product.combined_dim - product.aggregated_dim if product.aggregated_dim else 0


def requests_of(kind: str, block: np.ndarray, address: np.ndarray | int,
                num_bytes: np.ndarray | int) -> Requests:
    """Requests of one kind without empty ones; requests of a block that follow each other in DRAM are joined.

    `block`, `address` and `num_bytes` are (n,) int or broadcast to it; `block` does not descend.
    """
    block, address, num_bytes = np.broadcast_arrays(*np.atleast_1d(block, address, num_bytes))
    if not (num_bytes > 0).all():
        block, address, num_bytes = (array[num_bytes > 0] for array in (block, address, num_bytes))
    if not len(block):
        return NO_REQUESTS
    begins = np.ones(len(block), bool)
    begins[1:] = (block[1:] != block[:-1]) | (address[1:] != address[:-1] + num_bytes[:-1])
    first = np.flatnonzero(begins)
    return Requests(block[first].astype(np.int32), address[first].astype(np.int64),
                    np.add.reduceat(num_bytes, first, dtype=np.int64), np.full(len(first), KIND[kind], np.uint8))


def in_order(*requests: Requests) -> Requests:
    joined = [np.concatenate(arrays) for arrays in zip(*requests, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return Requests(*(array[order] for array in joined))


def by_address(*requests: Requests) -> Requests:
    joined = [np.concatenate(arrays) for arrays in zip(*requests, strict=True)]
    order = np.lexsort((joined[1], joined[0]))
    return Requests(*(array[order] for array in joined))


def runs_of(work: np.ndarray, limit: int = WORK_A_RUN) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of runs of blocks first to last - 1, of at most `limit` work or one block each.

    work, (num_blocks + 1,) int64, is the work before each block, then all work.
    """
    first = 0
    while first < len(work) - 1:
        last = max(first + 1, int(np.searchsorted(work, work[first] + limit, side="right")) - 1)
        yield first, last
        first = last


def distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, ascending. (np.unique hashes integers, which takes ten times as long.)"""
    ordered = np.sort(values)
    is_new = np.ones(len(ordered), bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


def block_starts(num_rows: int, rows_a_block: int) -> np.ndarray:
    return np.append(np.arange(0, num_rows, rows_a_block, dtype=np.int64), num_rows)
