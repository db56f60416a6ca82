"""Blocks overlap as the buffers' halves allow; each cycle of each stage is work or a stall of one cause."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest

from hpcgnn.accelerators.dram import Memory, read_dram, traffic_of
from hpcgnn.accelerators.schedule import KINDS, NO_REQUESTS, Blocks, Pass, Requests
from hpcgnn.accelerators.timeline import CAUSES, run
from hpcgnn.errors import ConfigError

HBM = read_dram("hbm1")
SMALL = read_dram("hbm1", num_channels=2, queue_depth=4)
NO_REFRESH = read_dram("hbm1", num_channels=2, refi=0)


def listed(rows):
    """Requests of rows (block, address, num_bytes, kind)."""
    columns = zip(*rows, strict=True) if rows else [()] * 4
    return Requests(*(np.array(column, dtype) for column, dtype in
                      zip(columns, (np.int32, np.int64, np.int64, np.uint8), strict=True)))


def random_requests(rng, num_blocks, longest):
    return listed([(block, int(rng.integers(0, 1 << 17)), int(rng.integers(1, longest)), int(rng.integers(len(KINDS))))
                   for block in range(num_blocks) for _ in range(rng.integers(0, 4))])


def random_blocks(rng, num_stages):
    num_blocks, slowest, longest = rng.integers(0, 14).item(), rng.choice([2, 60, 400]), rng.choice([65, 3000])
    return Blocks(rng.integers(0, slowest, (num_blocks, num_stages)), random_requests(rng, num_blocks, longest),
                  random_requests(rng, num_blocks, longest), {"read:input": int(rng.integers(100)), "mac": num_blocks})


def pass_of(runs, num_stages, buffered_until=-1, name="pass"):
    return Pass(name, tuple(f"stage {s}" for s in range(num_stages)), lambda: iter(runs), buffered_until)


def part_of(requests, begin, end):
    chosen = (requests.block >= begin) & (requests.block < end)
    part = Requests(*(array[chosen] for array in requests))
    return part._replace(block=part.block - np.int32(begin))


def split(blocks, bounds):
    """The same blocks in several runs; the events are all in the first."""
    return [Blocks(blocks.cycles[begin:end], part_of(blocks.reads, begin, end), part_of(blocks.writes, begin, end),
                   {} if number else blocks.events)
            for number, (begin, end) in enumerate(pairwise(bounds))]


class SlowPass:
    """The rules as they are written: the time of each request and of each end is asked for by its number."""

    def __init__(self, blocks, num_stages, buffered_until, memory, ratio, begin):
        self.cycles, self.last, self.freed = blocks.cycles, num_stages - 1, buffered_until % num_stages
        self.memory, self.ratio, self.begin, self.made = memory, ratio, begin, begin
        self.done, self.ends, self.spans = {}, {}, []
        num_blocks = len(blocks.cycles)
        order = [(side, i) for i in range(num_blocks + 1) for side, i in (("read", i), ("write", i - 1))]
        for side, i in order:
            requests = part_of(blocks.reads if side == "read" else blocks.writes, i, i + 1)
            if 0 <= i < num_blocks and len(requests.block):
                self.serve(side, i, requests)
        ends = [self.end(s, i) for s in range(num_stages) for i in range(num_blocks)]
        self.finished = max([begin, *ends, *self.done.values()])
        self.stages = [self.account(s) for s in range(num_stages)]

    def serve(self, side, i, requests):
        self.made = max(self.made, self.end(self.freed, i - 2) if side == "read" else self.end(self.last, i))
        clock = self.memory.serve(requests, int(-(-self.made // self.ratio)), side == "write")
        self.done[side, i] = int(-(-clock * self.ratio // 1))
        self.spans.append((self.made, self.done[side, i]))

    def waits(self, s, i):
        """When what a stage needs for a block is there, by cause; the first one counts where two are as late."""
        into = {"upstream": self.end(s - 1, i)} if s else {"dram reads": self.done.get(("read", i), self.begin)}
        if s < self.last:
            return into | {"downstream": self.end(s + 1, i - 2)}
        return into | {"dram writes": self.done.get(("write", i - 2), self.begin)}

    def end(self, s, i):
        if i < 0:
            return self.begin
        if (s, i) not in self.ends:
            self.ends[s, i] = max(self.end(s, i - 1), *self.waits(s, i).values()) + int(self.cycles[i, s])
        return self.ends[s, i]

    def account(self, s):
        """Busy cycles and stalls of a stage, counted cycle by cycle."""
        what = ["drain"] * (self.finished - self.begin)
        for i in reversed(range(len(self.cycles))):
            start = self.end(s, i) - int(self.cycles[i, s])
            waits = self.waits(s, i)
            cause = max(waits, key=waits.get)
            what[:self.end(s, i) - self.begin] = [cause] * (start - self.begin) + ["busy"] * int(self.cycles[i, s])
            what[:self.end(s, i - 1) - self.begin] = ["before"] * (self.end(s, i - 1) - self.begin)
        return Counter(what)

    def dram_busy(self):
        return len({cycle for begin, end in self.spans for cycle in range(begin, end)})


@pytest.mark.parametrize("seed", range(30))
def test_blocks_are_timed_as_the_rules_say_one_by_one(seed):
    rng = np.random.default_rng(seed)
    dram, clock_ghz = [HBM, SMALL, NO_REFRESH][seed % 3], float(rng.choice([1.0, 0.7, 1.5, 0.5]))
    memory, begin, passes, slow = Memory(dram), 0, [], []
    for number in range(rng.integers(1, 4)):
        num_stages = int(rng.integers(1, 5))
        blocks, freed = random_blocks(rng, num_stages), int(rng.integers(-1, num_stages))
        passes.append(pass_of([blocks], num_stages, freed, f"pass {number}"))
        before = memory.counts.copy()
        slow.append(SlowPass(blocks, num_stages, freed, memory, dram.cycles_per_clock(clock_ghz), begin))
        slow[-1].counts, begin = memory.counts - before, slow[-1].finished
    timing = run(passes, dram, clock_ghz)
    assert timing.cycles == begin
    for timed, reference in zip(timing.passes, slow, strict=True):
        assert timed.cycles == reference.finished - reference.begin
        assert timed.dram_busy_cycles == reference.dram_busy()
        for stage, counted in zip(timed.stages, reference.stages, strict=True):
            assert {"busy": stage.busy_cycles, **stage.stalls} == {what: counted[what] for what in ("busy", *CAUSES)}
        assert timed.reads == traffic_of(reference.counts[0], 64)
        assert timed.writes == traffic_of(reference.counts[1], 64)


@pytest.mark.parametrize("seed", range(15))
def test_a_pass_takes_as_long_in_other_runs_of_blocks(seed):
    rng = np.random.default_rng(seed)
    num_stages = int(rng.integers(1, 5))
    blocks, freed = random_blocks(rng, num_stages), int(rng.integers(-1, num_stages))
    num_blocks = len(blocks.cycles)
    bounds = [0, *np.sort(rng.integers(0, num_blocks + 1, rng.integers(0, 6))).tolist(), num_blocks]
    whole = run([pass_of([blocks], num_stages, freed)] * 2, SMALL, 1.0)
    assert run([pass_of(split(blocks, bounds), num_stages, freed)] * 2, SMALL, 1.0) == whole


@pytest.mark.parametrize("seed", range(8))
def test_cycles_beyond_those_without_requests_are_stalls_of_dram(seed):
    rng = np.random.default_rng(seed)
    blocks = random_blocks(rng, 3)
    without = blocks._replace(reads=NO_REQUESTS, writes=NO_REQUESTS)
    first, timed = run([pass_of([blocks], 3, 0)] * 2, SMALL, 1.0).passes
    ideal, = run([pass_of([without], 3, 0)], SMALL, 1.0).passes
    assert timed.ideal_cycles == first.ideal_cycles == ideal.cycles == ideal.ideal_cycles
    assert timed.dram_stall_cycles == timed.cycles - ideal.cycles >= 0


def test_a_lone_block_waits_for_its_reads_and_drains_its_writes():
    """16 clocks of 2 cycles for a read; a write to another bank takes nRCDW + nCWL + nBL = 12 clocks."""
    blocks = Blocks(np.array([[100]]), listed([(0, 0, 64, 0)]), listed([(0, 1 << 16, 64, 8)]), {})
    timed, = run([pass_of([blocks], 1)], HBM, 1.0).passes
    assert timed.cycles == 32 + 100 + 24
    assert timed.stages[0].stalls == {"dram reads": 32, "upstream": 0, "downstream": 0, "dram writes": 0, "drain": 24}
    assert timed.dram_busy_cycles == 32 + 24
    assert (timed.ideal_cycles, timed.dram_bytes) == (100, 128)


def test_events_and_traffic_are_summed_and_become_json():
    runs = [Blocks(np.array([[3, 4]]), listed([(0, 64 * n, 100, 3)]), listed([(0, 4096, 10, 8)]), {"mac": 5, "add": n})
            for n in range(3)]
    timing = run([pass_of(runs, 2, name="first"), pass_of(runs[:1], 2, name="second")], HBM, 1.0)
    assert timing.events() == {"mac": 20, "add": 3}
    assert timing.passes[0].num_blocks == 3
    assert timing.passes[0].reads["edges"].requested_bytes == 300
    assert timing.dram_bytes_by_kind() == {"edges": 4 * 128, "output rows": 4 * 64}
    assert timing.dram_bytes == 4 * 192
    assert json.loads(json.dumps(asdict(timing)))["passes"][0]["stages"][1]["name"] == "stage 1"


def test_a_pass_without_blocks_takes_no_time():
    empty = Blocks(np.empty((0, 2), np.int64), NO_REQUESTS, NO_REQUESTS, {})
    for runs in ([], [empty], [empty] * 3):
        timing = run([pass_of(runs, 2)], HBM, 1.0)
        assert (timing.cycles, timing.passes[0].reads) == (0, {})


GOOD = Blocks(np.full((3, 2), 4), listed([(0, 0, 64, 0), (2, 64, 64, 1)]), listed([(1, 0, 64, 8)]), {"mac": 1})


@pytest.mark.parametrize("bad", [
    {"reads": listed([(2, 0, 64, 0), (0, 0, 64, 0)])}, {"reads": listed([(3, 0, 64, 0)])},
    {"writes": listed([(-1, 0, 64, 0)])}, {"writes": listed([(0, 0, -64, 0)])}, {"writes": listed([(0, 0, 0, 0)])},
    {"reads": listed([(0, -64, 64, 0)])}, {"reads": listed([(0, 0, 64, len(KINDS))])},
    {"writes": listed([(0, HBM.capacity_bytes - 1, 2, 0)])}, {"reads": GOOD.reads._replace(block=np.array([0, 2]))},
    {"cycles": np.full((3, 2), -1)}, {"cycles": np.full((3, 3), 1)}, {"cycles": np.full((3, 2), 1.0)},
    {"cycles": np.full(6, 1)}, {"events": {"mac": -1}}, {"events": {"mac": 0.5}}])
def test_blocks_outside_their_contract_are_refused(bad):
    assert run([pass_of([GOOD], 2)], HBM, 1.0).cycles > 0
    with pytest.raises(ConfigError):
        run([pass_of([GOOD, GOOD._replace(**bad)], 2)], HBM, 1.0)


@pytest.mark.parametrize(("num_stages", "freed", "clock_ghz"), [(0, -1, 1.0), (17, -1, 1.0), (2, 2, 1.0), (2, -2, 1.0),
                                                               (2, -1, 0.0), (2, -1, float("nan"))])
def test_a_pass_that_can_not_be_is_refused(num_stages, freed, clock_ghz):
    with pytest.raises(ConfigError):
        run([pass_of([], num_stages, freed)], HBM, clock_ghz)
