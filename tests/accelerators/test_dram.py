"""DRAM serves bursts when its published timings allow, counts each of them once, and refuses what it can't be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import reference_dram
import reference_dram_first_ready
from random_requests import random_calls, random_dram, random_wide_dram, requests, served

from hpcgnn._ext import dram_timing
from hpcgnn.accelerators.dram import Memory, read_dram
from hpcgnn.accelerators.schedule import KINDS, NO_REQUESTS
from hpcgnn.errors import ConfigError

BOTH = pytest.mark.parametrize("scheduling", ["in-order", "first-ready"])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("scheduling", "serve"), [("in-order", reference_dram.serve),
                                                   ("first-ready", reference_dram_first_ready.serve_first_ready)])
def test_bursts_are_served_as_clock_by_clock_with_each_command_tried(seed, scheduling, serve):
    rng = np.random.default_rng(seed)
    dram = random_dram(rng, scheduling)
    calls = random_calls(rng, dram)
    done, bursts = serve(dram, calls)
    assert served(dram, calls) == (done, Counter(bursts))


@BOTH
@pytest.mark.parametrize("draw", [random_dram, random_wide_dram])
@pytest.mark.parametrize("seed", range(8))
def test_a_stream_takes_as_long_as_its_bursts_asked_for_one_by_one(seed, draw, scheduling):
    rng = np.random.default_rng(seed)
    dram = draw(rng, scheduling)
    whole, single = Memory(dram), Memory(dram)
    for _ in range(4):
        is_write, ready = bool(rng.integers(2)), int(rng.integers(0, 4000))
        num_bytes = rng.integers(1, rng.choice([3000, min(200_000, dram.capacity_bytes)]), rng.integers(1, 4))
        begin = rng.integers(0, dram.capacity_bytes - num_bytes)
        numbers = np.concatenate([np.arange(first // dram.burst_bytes, (first + size - 1) // dram.burst_bytes + 1)
                                  for first, size in zip(begin, num_bytes, strict=True)])
        end = whole.serve(requests(begin, num_bytes), ready, is_write)
        assert end == single.serve(requests(numbers * dram.burst_bytes, dram.burst_bytes), ready, is_write)
    num_words = dram.num_channels * dram_timing.CHANNEL_WORDS
    assert np.array_equal(whole.channels[:num_words], single.channels[:num_words])
    assert np.array_equal(whole.counts[:, :, 1:], single.counts[:, :, 1:])


@BOTH
def test_one_read_takes_an_activation_a_read_and_a_transfer(scheduling):
    dram = read_dram("hbm1", scheduling=scheduling)
    assert Memory(dram).serve(NO_REQUESTS, 77) == 77
    assert Memory(dram).serve(requests(4096, 1), 100) == 100 + 7 + 7 + 2      # nRCDR + nCL + nBL
    assert Memory(dram).serve(requests(4096, 1), 100, is_write=True) == 100 + 6 + 4 + 2       # nRCDW + nCWL + nBL


@BOTH
@pytest.mark.parametrize(("address", "clocks"), [(0, 4), (64 * 64, 4), (64 * 16, 2), (64 * 32, 2)])
def test_a_read_comes_later_after_a_write_of_its_bank_group_than_of_another(address, clocks, scheduling):
    """All rows are open: nCWL + nBL after the write, and nWTRL = 4 or nWTRS = 2 clocks, it is read in nCL + nBL."""
    memory = Memory(read_dram("hbm1", scheduling=scheduling))
    memory.serve(requests(np.arange(64) * 64, 64))
    written = memory.serve(requests(0, 64), 100, is_write=True)
    assert written == 100 + 4 + 2
    assert memory.serve(requests(address, 64), 100) == written + clocks + 7 + 2


def test_the_published_hbm_has_256_gb_per_s():
    dram = read_dram("hbm1")
    assert dram.num_channels * dram.channel_bits / 8 * 2 * dram.clock_ghz == 256      # two transfers a clock
    assert dram.burst_bytes == 64
    assert dram.cycles_per_clock(1.0) == 2


@pytest.mark.parametrize(("scheduling", "lost"), [("in-order", 6), ("first-ready", 1)])
@pytest.mark.parametrize("num_bytes", [1 << 16, 1 << 24])
def test_a_stream_without_refresh_reaches_the_peak_after_its_first_rows_are_open(num_bytes, scheduling, lost):
    """Four activations come 4 clocks apart. In order, reads wait for each; else the second read is of the first's bank
    group, nCCDL = 3 clocks after it, and the next row is open in time.
    """
    dram = read_dram("hbm1", refi=0, scheduling=scheduling)
    bursts_per_channel = num_bytes // 64 // 16
    assert Memory(dram).serve(requests(0, num_bytes)) == 7 + lost + (bursts_per_channel - 1) * 2 + 7 + 2


ONE_BANK = {"refi": 0, "num_channels": 1, "num_bank_groups": 1, "banks_per_group": 1}


@pytest.mark.parametrize("bursts", [1, 2])
def test_random_rows_come_within_3_percent_of_what_four_activations_allow(bursts):
    """nFAW = 20 clocks for four rows of a channel; 102 GB/s of one burst each. In order, they wait for each bank."""
    rng, num_rows = np.random.default_rng(0), 20_000
    address = rng.choice(1 << 20, num_rows, replace=False) * 1024 + rng.integers(0, 4, num_rows) * 64 * bursts
    mapping = ["channel", "column", "bank group", "bank", "row"]
    first, in_order = (read_dram("hbm1", refi=0, num_channels=1, mapping=mapping, scheduling=scheduling)
                       for scheduling in ("first-ready", "in-order"))
    clocks = Memory(first).serve(requests(address, 64 * bursts))
    assert num_rows / 4 * 20 - 20 <= clocks < 1.03 * num_rows / 4 * 20
    assert Memory(in_order).serve(requests(address, 64 * bursts)) > 1.3 * clocks


def test_a_hit_overtakes_a_miss_that_came_before_it():
    """Read at 7 and, nCCDL = 3 clocks later, at 10; precharged nRTP = 7 later at 17, activated at 24, read at 31."""
    memory = Memory(read_dram("hbm1", **ONE_BANK))
    assert memory.serve(requests([0, 1024, 64], 64)) == 31 + 7 + 2
    assert memory.traffic()["weights"].row_misses == 2


def test_no_burst_overtakes_one_of_an_earlier_list():
    memory = Memory(read_dram("hbm1", **ONE_BANK))
    memory.serve(requests([0, 1024], 64))
    memory.serve(requests(64, 64))
    assert memory.traffic()["weights"].row_misses == 3


def ends_alike(dram, lists, is_write):
    """Whether lists of (address, num_bytes) leave a channel alike when each burst is a request of its own."""
    whole, single = Memory(dram), Memory(dram)
    for listed in lists:
        numbers = np.concatenate([np.arange(address // 64, (address + size) // 64) for address, size in listed])
        clock = whole.serve(requests(*np.array(listed).T), 0, is_write)
        if clock != single.serve(requests(numbers * 64, 64), 0, is_write):
            return False
    return np.array_equal(whole.channels[:dram_timing.CHANNEL_WORDS], single.channels[:dram_timing.CHANNEL_WORDS])


@pytest.mark.covering(1)
@pytest.mark.parametrize("is_write", [False, True])
@pytest.mark.parametrize("changes", [{}, {"queue_depth": 8}, {"faw": 64}, {"rcd_read": 40}])
def test_streams_that_begin_and_end_near_a_change_of_rows_are_as_their_bursts(changes, is_write):
    """64 bursts lie in the rows of one bank of each group; the stream begins in the second ones, which are open, comes
    after a burst in the third ones, ends in these, and one in the fourth ones, which are closed, comes after it.
    """
    dram = read_dram("hbm1", refi=0, num_channels=1, **changes)
    another_row = 4 * 4096
    for first in range(0, 64, 3):
        for end in (*range(1, 40, 2), 64, 65, 130):
            before = (another_row + 2 * 4096 + (first + end) % 4 * 64, 64)
            stream = (4096 + first * 64, (64 - first + end) * 64)
            after = (3 * 4096 + end % 4 * 64, 64)
            assert ends_alike(dram, [[(4096, 4096), before], [before, stream, after]], is_write), (first, end)


@pytest.mark.parametrize("changes", [
    {"num_channels": 12}, {"num_channels": 0}, {"num_channels": True}, {"num_bank_groups": 32}, {"banks_per_group": 32},
    {"row_bytes": 32}, {"row_bytes": 1000}, {"queue_depth": 0}, {"queue_depth": 129}, {"clock_ghz": 0},
    {"clock_ghz": "fast"}, {"clock_ghz": float("nan")}, {"rc": 0}, {"rc": 2.5}, {"refi": 150}, {"refi": -1},
    {"cwl": 11}, {"burst_length": 1}, {"scheduling": "ready"}, {"scheduling": 1}, {"scheduling": ["in-order"]},
    {"mapping": ["channel", "column", "bank", "row"]}, {"mapping": 3},
    {"mapping": ["channel", "channel", "column", "bank", "row"]}, {"unknown": 1}, {"num_rows": 1 << 30}])
def test_a_dram_that_can_not_be_is_refused(changes):
    with pytest.raises(ConfigError):
        read_dram("hbm1", **changes)


@pytest.mark.parametrize("text", ["", "[dram]\n", "not toml", "[dram]\n[timings]\n[more]\n", "dram = 1\ntimings = 2\n"])
def test_a_file_that_is_no_dram_is_refused(tmp_path, text):
    (tmp_path / "other.toml").write_text(text)
    with pytest.raises(ConfigError):
        read_dram(tmp_path / "other.toml")
    with pytest.raises(ConfigError, match="there is no DRAM"):
        read_dram("unknown")


@pytest.mark.parametrize(("field", "value"), [
    ("num_bytes", np.array([0])), ("num_bytes", np.array([-5])), ("num_bytes", np.array([1 << 62])),
    ("address", np.array([-1])), ("address", np.array([1 << 50])), ("kind", np.array([len(KINDS)], np.uint8)),
    ("kind", np.array([0])), ("num_bytes", np.array([1, 2])), ("address", np.array([0.5])),
    ("block", np.array([-1], np.int32))])
def test_requests_outside_their_contract_are_refused(field, value):
    with pytest.raises(ConfigError):
        Memory(read_dram("hbm1")).serve(requests(0, 64)._replace(**{field: value}))
