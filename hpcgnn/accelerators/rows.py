"""Where rows in CSR lie in DRAM: those that a product reads, and those that it leaves for the next one.

No accelerator's dataflow is known here.

Where a row's values that are not zero may lie, as only their number in each slice is known.

What an accelerator does with them is not known here.

A fully associative cache of rows of any size, that is simulated use by use. What a row holds is not known here.

Requests for rows of matrices in DRAM, joined where they follow each other, and work cut into runs of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcgnn._ext import row_cache as kernels
from hpcgnn.accelerators.schedule import KIND, NO_REQUESTS, Requests
from hpcgnn.accelerators.workload import NUM_SLICES, FeatureCounts, Product, Workload
from hpcgnn.errors import ConfigError


def compressed_start(nonzeros: np.ndarray, bit_width: int, id_bytes: int) -> np.ndarray:
    """Return the byte where each row of CSR begins, and the number of bytes, (num_rows + 1,) int64.

    A row has an offset, and an id and a value for each value that is not zero.

    Parameters
    ----------
    nonzeros : (num_rows,) int64
    """
    return starts_of(id_bytes + id_bytes * nonzeros + size_in_bytes(nonzeros, bit_width))


def result_start(workload: Workload, index: int, bit_width: int, id_bytes: int) -> np.ndarray:
    """Return where the rows that product `index` leaves begin, and the number of bytes, (num_nodes + 1,) int64: as the
    next product reads them; dense after the last one.
    """
    dim = result_dim(workload.products[index])
    after = _rows_after(workload, index)
    if after is None or after.dim != dim:
        return starts_of(np.full(workload.num_nodes, size_in_bytes(dim, bit_width), np.int64))
    return compressed_start(after.row_nonzeros(), bit_width, id_bytes)


def _rows_after(workload: Workload, index: int) -> FeatureCounts | None:
    return workload.products[index + 1].rows if index + 1 < len(workload.products) else None


def starts_of(sizes: np.ndarray) -> np.ndarray:
    """Return where things of these sizes begin, one after the other, and their size in all, (n + 1,) int64."""
    start = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=start[1:])
    return start


KNUTH = 2654435761      # 2^32 over the golden ratio: consecutive numbers are spread over all of 32 bits


def slice_bounds(rows: FeatureCounts) -> np.ndarray:
    """Return the first column of each slice, and the number of columns, (NUM_SLICES + 1,) int64."""
    return np.minimum(np.arange(NUM_SLICES + 1, dtype=np.int64) * rows.slice_dim, rows.dim)


def nonzeros_before(nonzeros: np.ndarray, rows: FeatureCounts, column: np.ndarray | int) -> np.ndarray:
    """Return how many values that are not zero lie before columns, if each slice's are spread evenly, rounded down.

    Parameters
    ----------
    nonzeros : (..., NUM_SLICES) int         of a row, or of some rows together
    column : (n,) int64                      from 0 to dim

    Returns
    -------
    (..., n) int64
    """
    bounds = slice_bounds(rows)
    width = np.diff(bounds)
    covered = np.clip(np.atleast_1d(column)[:, None] - bounds[:-1], 0, width)
    counted = nonzeros[..., None, :].astype(np.int64) * covered // np.maximum(width, 1)
    return counted.sum(axis=-1)


def spread_columns(rows: FeatureCounts, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Place the values of rows first to last - 1 in columns: evenly spaced in their slice, from a column that is drawn
    for each row and slice by a hash of the two.

    assumed: which columns are not zero is not known, so none is needed by more rows than another.

    Returns
    -------
    row, column : (num_values,) int64         row ascending; the columns of a row are distinct
    """
    bounds = slice_bounds(rows)
    width = np.tile(np.diff(bounds), last - first)
    count = rows.nonzeros[first:last].astype(np.int64).ravel()
    index = np.arange(first * NUM_SLICES, last * NUM_SLICES, dtype=np.int64)
    offset = (index * KNUTH % 2**32) * width >> 32
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    slot = np.repeat(np.arange(len(count)), count)
    within = (offset[slot] + place * width[slot] // count[slot]) % width[slot]
    return first + slot // NUM_SLICES, np.tile(bounds[:-1], last - first)[slot] + within


class RowCache:
    """Holds the rows that were used last, as many as fit; empty at first.

    Parameters
    ----------
    num_bytes : (num_rows,) int64      that each row takes; one that is larger than the cache passes by
    capacity : int                     bytes

    Raises
    ------
    ConfigError                        more rows than 32-bit ids can name
    """

    def __init__(self, num_bytes: np.ndarray, capacity: int) -> None:
        if len(num_bytes) >= np.iinfo(np.int32).max:
            raise ConfigError(f"a cache can name {np.iinfo(np.int32).max - 1} rows, and there are {len(num_bytes)}")
        self.num_bytes, self.capacity, self.held_bytes = np.ascontiguousarray(num_bytes, np.int64), capacity, 0
        self._newer = np.full(len(num_bytes) + 1, -1, np.int32)
        self._older = np.full(len(num_bytes) + 1, -1, np.int32)
        self._newer[-1] = self._older[-1] = len(num_bytes)

    def missed(self, row: np.ndarray) -> np.ndarray:
        """Use rows one after the other, and return which were not held, (num_uses,) bool.

        Parameters
        ----------
        row : (num_uses,) integer      below num_rows, which is not checked
        """
        missed = np.zeros(len(row), np.uint8)
        self.held_bytes = kernels.use_rows(np.ascontiguousarray(row, np.int32), self.num_bytes, self.capacity,
                                           self.held_bytes, self._newer, self._older, missed)
        return missed.astype(bool)


# Of a run of blocks: each takes some hundred bytes while its requests are made.
WORK_A_RUN = 1 << 19


def size_in_bytes(num_values: np.ndarray | int, bit_width: int) -> np.ndarray | int:
    """Return the whole bytes that so many values of a width take, element by element."""
    return -(-num_values * bit_width // 8)


def result_dim(product: Product) -> int:
    """Return the columns of a product's result: those that are not aggregated are added to the others, as GraphSage
    adds a row's own part (see Product); without aggregation all stay.
    """
    return product.aggregated_dim or product.combined_dim


def own_dim(product: Product) -> int:
    """Return how many combined columns are added to the row that they came from."""
    return product.combined_dim - product.aggregated_dim if product.aggregated_dim else 0


def requests_of(kind: str, block: np.ndarray, address: np.ndarray, num_bytes: np.ndarray | int) -> Requests:
    """Return requests of one kind, without empty ones; those of a block that follow each other in DRAM become one.

    Parameters
    ----------
    kind : str                                       of KINDS
    block, address, num_bytes : (n,) int, or what can be broadcast to it; block doesn't descend
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
    """Return all requests by their blocks; within a block in the order of the arguments."""
    joined = [np.concatenate(arrays) for arrays in zip(*requests, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return Requests(*(array[order] for array in joined))


def by_address(*requests: Requests) -> Requests:
    """Return all requests by their blocks; within a block in the order of their addresses."""
    joined = [np.concatenate(arrays) for arrays in zip(*requests, strict=True)]
    order = np.lexsort((joined[1], joined[0]))
    return Requests(*(array[order] for array in joined))


def runs_of(work: np.ndarray, limit: int = WORK_A_RUN) -> Iterator[tuple[int, int]]:
    """Cut blocks into runs whose work stays within a limit, or that have one block only.

    Parameters
    ----------
    work : (num_blocks + 1,) int64       before each block, and in all

    Yields
    ------
    first, last : int                    the run has the blocks first to last - 1
    """
    first = 0
    while first < len(work) - 1:
        last = max(first + 1, int(np.searchsorted(work, work[first] + limit, side="right")) - 1)
        yield first, last
        first = last


def distinct(values: np.ndarray) -> np.ndarray:
    """Return each value once, ascending; np.unique hashes integers, which takes ten times as long."""
    ordered = np.sort(values)
    is_new = np.ones(len(ordered), bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


def block_starts(num_rows: int, rows_a_block: int) -> np.ndarray:
    """Return the first row of each block of so many rows, and the number of rows, (num_blocks + 1,) int64."""
    return np.append(np.arange(0, num_rows, rows_a_block, dtype=np.int64), num_rows)
