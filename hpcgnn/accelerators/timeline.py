"""Passes in time: blocks overlap in the stages of a design, and DRAM serves their requests in one fixed order.

The results say who waited for whom, as plain values that become JSON as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn._ext import timeline as compiled
from hpcgnn.accelerators.dram import Dram, Memory, Traffic, as_arrays, traffic_of
from hpcgnn.accelerators.schedule import KINDS, NO_REQUESTS, Pass, Requests
from hpcgnn.errors import ConfigError

CAUSES = ("dram reads", "upstream", "downstream", "dram writes", "drain")


def run(passes: Iterable[Pass], dram: Dram, clock_ghz: float) -> Timing:
    """Simulate passes one after the other, from closed banks on; `clock_ghz`, at least 0.001, is the accelerator's.

    Each buffer has two halves. The reads of block b are made when block b - 2 has left the stage `buffered_until`; a
    stage starts when its input is there and the next stage has taken block b - 2; the last stage waits for the writes
    of block b - 2. Requests are made strictly in the order reads(0), reads(1), writes(0), reads(2), writes(1), ...; the
    channels of DRAM work on them independently. Raises ConfigError if a pass, its blocks or its requests break the
    contract of `hpcgnn.accelerators.schedule`.
    """
    if not 0.001 <= clock_ghz <= 100:
        raise ConfigError(f"an accelerator's clock is {clock_ghz} GHz; expected 0.001 to 100")
    timed, memory, begin = [], Memory(dram), 0
    for each in passes:
        timed.append(_timed(each, memory, clock_ghz, begin))
        begin += timed[-1].cycles
    return Timing(clock_ghz, dram.name, tuple(timed))


@dataclass(frozen=True)
class StageTiming:
    """One stage in one pass; busy_cycles and all stalls sum to the cycles of the pass."""

    name: str
    busy_cycles: int
    # cycles in which the stage waits: for its block's reads; for the block to leave the stage before it; for the next
    # stage to free a buffer; for writes that free the last buffer; after its last block. If causes overlap, the one
    # that ends later counts
    stalls: Mapping[str, int]


@dataclass(frozen=True)
class PassTiming:
    name: str
    num_blocks: int
    cycles: int                     # from the first request to the last byte written
    ideal_cycles: int               # the same if DRAM answered at once
    stages: tuple[StageTiming, ...]
    dram_busy_cycles: int           # in which DRAM had a request to serve
    # reads, writes: by kind
    reads: Mapping[str, Traffic]
    writes: Mapping[str, Traffic]
    events: Mapping[str, int]       # summed over the blocks

    @property
    def dram_stall_cycles(self) -> int:
        """Cycles that the pass would save if DRAM answered at once (Fig. 20a of MEGA)."""
        return self.cycles - self.ideal_cycles

    @property
    def dram_bytes(self) -> int:
        return sum(traffic.num_bytes for traffic in (*self.reads.values(), *self.writes.values()))


@dataclass(frozen=True)
class Timing:
    """An inference: passes one after the other. All cycles are the accelerator's."""

    clock_ghz: float
    dram: str
    passes: tuple[PassTiming, ...]

    @property
    def cycles(self) -> int:
        return sum(each.cycles for each in self.passes)

    @property
    def dram_bytes(self) -> int:
        return sum(each.dram_bytes for each in self.passes)

    def events(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for each in self.passes:
            total.update(each.events)
        return dict(total)

    def dram_bytes_by_kind(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for each in self.passes:
            for side in (each.reads, each.writes):
                total.update({kind: traffic.num_bytes for kind, traffic in side.items()})
        return dict(total)


def _timed(each: Pass, memory: Memory, clock_ghz: float, begin: int) -> PassTiming:
    name, num_stages, dram, num_blocks = each.name, len(each.stages), memory.dram, 0
    if not 1 <= num_stages <= compiled.LARGEST_NUM_STAGES or not -1 <= each.buffered_until < num_stages:
        raise ConfigError(f"{name} has {num_stages} stages and is buffered until {each.buffered_until}; "
                          f"expected 1 to {compiled.LARGEST_NUM_STAGES}, and one of them or -1")
    times = compiled.new_pass(begin, num_stages, each.buffered_until % num_stages)
    counts, ratio = np.zeros((2, len(KINDS), 3), np.int64), dram.cycles_per_clock(clock_ghz)
    state = memory.parameters, memory.channels, (ratio.numerator, ratio.denominator), counts
    held, events = NO_REQUESTS, Counter[str]()
    for blocks in each.blocks():
        cycles = _checked_cycles(each, blocks.cycles)
        reads = as_arrays(blocks.reads, f"reads of {name}", len(cycles), dram.capacity_bytes)
        writes = as_arrays(blocks.writes, f"writes of {name}", len(cycles), dram.capacity_bytes)
        events.update(_checked_events(blocks.events, name))
        if not len(cycles):
            continue
        # The writes of the last block are made after the reads of the next run's first block.
        first_held = np.searchsorted(writes[0], len(cycles) - 1)
        made = [np.concatenate((old, new[:first_held])) for old, new in zip(held, writes, strict=True)]
        held = Requests(*(array[first_held:] for array in writes))
        held = held._replace(block=np.full(len(held.block), -1, np.int32))
        times = compiled.run_blocks(times, *state, cycles, reads, made)
        num_blocks += len(cycles)
    times, end = compiled.finish_pass(times, *state, held)
    stages = times["stage"][:num_stages]
    by_stage = tuple(StageTiming(stage_name, stage["busy"],
                                 dict(zip(CAUSES, [*stage["stalled"], end - stage["end"][0]], strict=True)))
                     for stage_name, stage in zip(each.stages, stages, strict=True))
    read, written = (traffic_of(of_side, dram.burst_bytes) for of_side in counts)
    return PassTiming(name, num_blocks, end - begin, stages[-1]["ideal_end"][0], by_stage, times["dram_busy"], read,
                      written, dict(events))


def _checked_cycles(each: Pass, cycles: np.ndarray) -> np.ndarray:
    num_stages = len(each.stages)
    if cycles.dtype != np.int64 or cycles.ndim != 2 or cycles.shape[1] != num_stages or (cycles < 0).any():
        raise ConfigError(f"cycles of {each.name} are {cycles.dtype} {cycles.shape}; expected int64 "
                          f"(num_blocks, {num_stages}), none below 0")
    return np.ascontiguousarray(cycles)


def _checked_events(events: Mapping[str, Any], name: str) -> dict[str, int]:
    for event, number in events.items():
        if number < 0 or int(number) != number:
            raise ConfigError(f"{name} counts {event} {number} times; expected a whole number, none below 0")
    return {event: int(number) for event, number in events.items()}
