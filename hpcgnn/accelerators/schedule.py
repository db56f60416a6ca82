"""What a design makes of a workload: passes of blocks, each with its requests to DRAM, its cycles in each unit and the
events that cost energy.

How long a request takes, and who waits for whom, is known by hpcgnn.accelerators.timeline alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# What a request to DRAM is for.
KINDS = ("weights", "input rows", "positions", "edges", "combined rows", "condensed rows", "lists", "partial sums",
         "output rows")
KIND = {name: index for index, name in enumerate(KINDS)}


class Requests(NamedTuple):
    """Requests to DRAM, in the order in which they are made.

    Attributes
    ----------
    block : (n,) int32         the block that they belong to, by its number within its Blocks; not descending
    address : (n,) int64       of the first byte
    num_bytes : (n,) int64     at least 1; the bytes follow each other
    kind : (n,) uint8          an index of KINDS
    """

    block: np.ndarray
    address: np.ndarray
    num_bytes: np.ndarray
    kind: np.ndarray


NO_REQUESTS = Requests(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))


class Blocks(NamedTuple):
    """A run of consecutive blocks of a pass; one pass may come in many of these, so that memory stays bounded.

    Attributes
    ----------
    cycles : (num_blocks, num_stages) int64    that a block keeps each stage busy
    reads : Requests                           all served before the block enters the first stage
    writes : Requests                          made when the block has left the last stage
    events : mapping of str to int             what costs energy: "read:BUFFER" and "write:BUFFER" in bytes, by the
                                               names of the design's [buffers]; and operations by the names of its
                                               [units]. DRAM's bytes are counted by the timeline
    """

    cycles: np.ndarray
    reads: Requests
    writes: Requests
    events: Mapping[str, int]


@dataclass(frozen=True)
class Pass:
    """Blocks that overlap: while one computes, the next one's reads are served into the other half of the buffers.

    A pass begins when all writes of the pass before it are done.

    Attributes
    ----------
    name : str                            of the product and the phase
    stages : tuple of str                 units that a block passes through, in this order
    blocks : function without arguments   returns an iterator over Blocks, anew at each call
    buffered_until : int                  the stage whose end frees the half of the buffers that a block's reads fill;
                                          -1 is the last stage
    """

    name: str
    stages: tuple[str, ...]
    blocks: Callable[[], Iterator[Blocks]]
    buffered_until: int = -1


class AddressSpace:
    """Hands out addresses of DRAM, region after region, each beginning on a boundary of `alignment` bytes."""

    def __init__(self, alignment: int = 4096) -> None:
        self.alignment = alignment
        self.end = 0

    def reserve(self, num_bytes: int) -> int:
        """Return the address of a new region of so many bytes."""
        address = self.end
        self.end += -(-int(num_bytes) // self.alignment) * self.alignment
        return address
