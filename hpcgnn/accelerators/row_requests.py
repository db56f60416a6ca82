"""Requests for rows of matrices in DRAM, joined where they follow each other, and work cut into runs of bounded size.

No accelerator's dataflow is known here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcgnn.accelerators.schedule import KIND, NO_REQUESTS, Requests
from hpcgnn.accelerators.workload import Product

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
