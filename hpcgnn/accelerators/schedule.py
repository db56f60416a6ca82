"""The schedule of a workload on a design: passes of blocks with DRAM requests, cycles per unit and energy events.

A design yields these; `hpcgnn.accelerators.timeline` runs them in time. Example: a pass with stages ("simd", "mac") and
two blocks computes block 0 in mac while block 1 is in simd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Purposes of a request to DRAM.
KINDS = ("weights", "input rows", "positions", "edges", "combined rows", "condensed rows", "lists", "partial sums",
         "output rows")
KIND = {name: index for index, name in enumerate(KINDS)}


class Requests(NamedTuple):
    """Requests to DRAM, in the order in which they are made."""

    block: np.ndarray        # (n,) int32, number of the block within Blocks; not descending
    address: np.ndarray      # (n,) int64, address of the first byte
    num_bytes: np.ndarray    # (n,) int64, at least 1, contiguous
    kind: np.ndarray         # (n,) uint8, an index of KINDS


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
    """Hands out addresses of DRAM, region after region, each on a multiple of `alignment` bytes."""

    def __init__(self, alignment: int = 4096) -> None:
        self.alignment = alignment
        self.end = 0

    def reserve(self, num_bytes: int) -> int:
        address = self.end
        self.end += -(-int(num_bytes) // self.alignment) * self.alignment
        return address
