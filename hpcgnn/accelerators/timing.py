"""What a timeline finds: cycles, who waited for whom, and DRAM's traffic, as plain values that become JSON as they are.

Nothing is timed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hpcgnn.accelerators.dram import Traffic

CAUSES = ("dram reads", "upstream", "downstream", "dram writes", "drain")


@dataclass(frozen=True)
class StageTiming:
    """One stage in one pass: busy_cycles and all stalls sum to the cycles of the pass.

    Attributes
    ----------
    name : str
    busy_cycles : int
    stalls : mapping of CAUSES to int       cycles without work, while the stage waits for its block's reads; for the
                                            block to leave the stage before it; for the next stage to free a buffer; for
                                            writes that free the last buffer; and after its last block. Where two causes
                                            overlap, the wait is that of the one that ends later
    """

    name: str
    busy_cycles: int
    stalls: Mapping[str, int]


@dataclass(frozen=True)
class PassTiming:
    """One pass.

    Attributes
    ----------
    name : str
    num_blocks : int
    cycles : int                            from the first request to the last data written
    ideal_cycles : int                      the same if DRAM answered at once; the rest are stalls that DRAM induces
    stages : tuple of StageTiming
    dram_busy_cycles : int                  in which DRAM had a request to serve
    reads, writes : mapping of str to Traffic      of the kinds (KINDS) that were asked for
    events : mapping of str to int          summed over the blocks
    """

    name: str
    num_blocks: int
    cycles: int
    ideal_cycles: int
    stages: tuple[StageTiming, ...]
    dram_busy_cycles: int
    reads: Mapping[str, Traffic]
    writes: Mapping[str, Traffic]
    events: Mapping[str, int]

    @property
    def dram_stall_cycles(self) -> int:
        """Cycles that the pass would not take if DRAM answered at once (as in Fig. 20a of MEGA)."""
        return self.cycles - self.ideal_cycles

    @property
    def dram_bytes(self) -> int:
        return sum(traffic.num_bytes for traffic in (*self.reads.values(), *self.writes.values()))

    @property
    def activations(self) -> int:
        """Rows that DRAM opened."""
        return sum(traffic.row_misses for traffic in (*self.reads.values(), *self.writes.values()))


@dataclass(frozen=True)
class Timing:
    """An inference: passes one after the other.

    Attributes
    ----------
    clock_ghz : float       of the accelerator; all cycles are its
    dram : str              name of the DRAM
    passes : tuple of PassTiming
    """

    clock_ghz: float
    dram: str
    passes: tuple[PassTiming, ...]

    @property
    def cycles(self) -> int:
        return sum(each.cycles for each in self.passes)

    @property
    def seconds(self) -> float:
        return self.cycles / (self.clock_ghz * 1e9)

    @property
    def dram_bytes(self) -> int:
        return sum(each.dram_bytes for each in self.passes)

    def events(self) -> dict[str, int]:
        """Return the events of all passes, summed."""
        total: Counter[str] = Counter()
        for each in self.passes:
            total.update(each.events)
        return dict(total)

    def dram_bytes_by_kind(self) -> dict[str, int]:
        """Return bytes of whole bursts, read and written, by kind."""
        total: Counter[str] = Counter()
        for each in self.passes:
            for side in (each.reads, each.writes):
                total.update({kind: traffic.num_bytes for kind, traffic in side.items()})
        return dict(total)
