"""The schedule of a workload on a design: passes of blocks with DRAM requests, cycles per unit and energy events.

A design yields these; `hpcgnn.accelerators.timeline` runs them in time. Example: a pass with stages ("simd", "mac") and
two blocks computes block 0 in mac while block 1 is in simd. Work is cut into runs of blocks of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.workload import places_within

# Purposes of a request to DRAM.
KINDS = ("weights", "input rows", "positions", "edges", "combined rows", "condensed rows", "lists", "partial sums",
         "output rows")
KIND = {name: index for index, name in enumerate(KINDS)}
# Most work in a run of blocks: each unit takes some hundred bytes while its requests are made.
WORK_A_RUN = 1 << 19


class Requests(NamedTuple):
    """Requests to DRAM, in the order in which they are made."""

    block: np.ndarray        # (n,) int32, number of the block within Blocks; not descending
    address: np.ndarray      # (n,) int64, address of the first byte
    num_bytes: np.ndarray    # (n,) int64, at least 1, contiguous
    kind: np.ndarray         # (n,) uint8, an index of KINDS

    @property
    def total_bytes(self) -> int:
        return int(self.num_bytes.sum())


NO_REQUESTS = Requests(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))


class Blocks(NamedTuple):
    """Consecutive blocks of a pass. A pass may yield many `Blocks`, so that memory stays bounded."""

    cycles: np.ndarray           # (num_blocks, num_stages) int64, cycles that a block occupies each stage
    reads: Requests              # served before the block enters the first stage
    writes: Requests             # made when the block has left the last stage
    # "read:BUFFER" and "write:BUFFER" in bytes, by names of the design's [buffers]; operations by names of its [units].
    # The timeline counts DRAM's bytes
    events: Mapping[str, int]


@dataclass(frozen=True)
class Pass:
    """Blocks that overlap: while one computes, the reads of the next one fill the other half of the buffers.

    A pass begins when all writes of the pass before it are done.
    """

    name: str                                 # name of the product and the phase
    stages: tuple[str, ...]                   # units that a block passes through, in this order
    blocks: Callable[[], Iterator[Blocks]]    # returns a new iterator over Blocks
    buffered_until: int = -1  # the stage that frees a block's half of the buffers when it ends; -1: the last one


class AddressSpace:
    """Hands out addresses of DRAM, region after region, each on a multiple of 4,096 bytes."""

    def __init__(self) -> None:
        self.end = 0

    def reserve(self, num_bytes: int) -> int:
        address = self.end
        self.end += -(-int(num_bytes) // 4096) * 4096
        return address

    def place(self, start: np.ndarray) -> np.ndarray:
        """Addresses of rows that begin at the bytes `start`, (num_rows + 1,) int64, of a region that ends with them."""
        return start + self.reserve(start[-1])


def single_requests(kind: str, block: np.ndarray, address: np.ndarray | int, num_bytes: np.ndarray | int) -> Requests:
    """Requests of one kind without empty ones.

    `block`, `address` and `num_bytes` are (n,) int or broadcast to it; `block` does not descend.
    """
    block, address, num_bytes = np.broadcast_arrays(*np.atleast_1d(block, address, num_bytes))
    if not (num_bytes > 0).all():
        block, address, num_bytes = (array[num_bytes > 0] for array in (block, address, num_bytes))
    return Requests(block.astype(np.int32), address.astype(np.int64), num_bytes.astype(np.int64),
                    np.full(len(block), KIND[kind], np.uint8))


def requests_of(kind: str, block: np.ndarray, address: np.ndarray | int, num_bytes: np.ndarray | int) -> Requests:
    """As `single_requests`, with requests of a block that follow each other in DRAM joined."""
    block, address, num_bytes, kinds = single_requests(kind, block, address, num_bytes)
    if not len(block):
        return NO_REQUESTS
    begins = np.ones(len(block), bool)
    begins[1:] = (block[1:] != block[:-1]) | (address[1:] != address[:-1] + num_bytes[:-1])
    first = np.flatnonzero(begins)
    return Requests(block[first], address[first], np.add.reduceat(num_bytes, first), kinds[first])


def in_order(*requests: Requests) -> Requests:
    joined = [np.concatenate(arrays) for arrays in zip(*requests, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return Requests(*(array[order] for array in joined))


def by_address(*requests: Requests) -> Requests:
    joined = [np.concatenate(arrays) for arrays in zip(*requests, strict=True)]
    order = np.lexsort((joined[1], joined[0]))
    return Requests(*(array[order] for array in joined))


def block_starts(num_rows: int, rows_a_block: int) -> np.ndarray:
    """First row of each block, then the number of all rows."""
    return np.append(np.arange(0, num_rows, rows_a_block, dtype=np.int64), num_rows)


def block_start_of(group_start: np.ndarray, rows_a_block: int) -> np.ndarray:
    """As `block_starts`, for blocks within groups of rows; group_start is (num_groups + 1,)."""
    group, place = places_within(-(-np.diff(group_start) // rows_a_block))
    return np.append(group_start[group] + place * rows_a_block, group_start[-1])


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
