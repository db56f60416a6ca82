"""DRAM serves bursts when its published timings allow, counts each of them once, and refuses what it can't be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import reference_dram
import reference_dram_first_ready
from covering import long_but
from random_requests import random_calls, random_dram, random_wide_dram, requests, served

from hpcgnn._ext import dram_timing
from hpcgnn.accelerators.dram import Memory, read_dram
from hpcgnn.accelerators.schedule import KINDS, NO_REQUESTS
from hpcgnn.errors import ConfigError

BOTH = pytest.mark.parametrize("scheduling", ["in-order", "first-ready"])


@pytest.mark.parametrize("seed", long_but(range(20), range(60)))
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
@pytest.mark.parametrize("seed", long_but(range(20), range(60)))
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


PEAK_GB_PER_S = 256      # of all channels


@BOTH
def test_a_write_comes_when_the_data_of_the_read_before_it_has_left_the_lines(scheduling):
    """nCL + nCCDS + 2 - nCWL = 7 clocks after the read."""
    memory = Memory(read_dram("hbm1", scheduling=scheduling))
    memory.serve(requests(np.arange(64) * 64, 64))
    assert memory.serve(requests(0, 64), 100) == 100 + 7 + 2
    assert memory.serve(requests(64 * 16, 64), 100, is_write=True) == 100 + 7 + 4 + 2


def test_the_published_hbm_has_256_gb_per_s():
    dram = read_dram("hbm1")
    assert dram.num_channels * dram.channel_bits / 8 * 2 * dram.clock_ghz == PEAK_GB_PER_S      # two transfers a clock
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


@BOTH
def test_a_stream_pays_each_change_of_rows_where_no_command_comes_ahead_of_its_turn(scheduling):
    """One bank of one channel: 16 bursts 3 clocks apart, then read to precharge, precharge to activate, activate to
    read: 7 + 7 + 7 clocks. The open row is held for longer than nRAS = 17.
    """
    dram = read_dram("hbm1", refi=0, num_channels=1, num_bank_groups=1, banks_per_group=1, queue_depth=1,
                     scheduling=scheduling)
    num_rows = 50
    assert Memory(dram).serve(requests(0, num_rows * 1024)) == num_rows * (7 + 15 * 3) + (num_rows - 1) * 14 + 9


@BOTH
def test_a_stream_loses_a_refresh_in_each_interval_and_little_more(scheduling):
    dram = read_dram("hbm1", scheduling=scheduling)
    memory, num_bytes = Memory(dram), 1 << 28
    clocks = memory.serve(requests(0, num_bytes))
    at_peak = num_bytes // 64 // 16 * 2
    num_refreshes = clocks // 1950
    # A refresh begins when reads are done (at most 17 + 7 clocks) and ends with four activations (12 + 7).
    assert at_peak + num_refreshes * 130 <= clocks <= at_peak + num_refreshes * (130 + 24 + 19 + 2) + 50


@BOTH
def test_changes_of_rows_in_one_bank_are_an_activation_cycle_apart(scheduling):
    dram = read_dram("hbm1", scheduling=scheduling, refi=0)
    row_stride = 16 * 4 * 4 * 1024          # channels x groups x banks x bytes
    order = np.random.default_rng(0).permutation(1000)
    memory = Memory(dram)
    assert memory.serve(requests(order * row_stride, 64)) == 999 * 24 + 7 + 7 + 2       # nRC
    assert memory.traffic()["weights"].row_misses == 1000


@BOTH
def test_bursts_in_new_rows_of_all_banks_are_limited_by_four_activations(scheduling):
    """All 16 banks of one channel in turn, groups first: nFAW = 20 clocks for four of them, 4 clocks (nRRDS) apart."""
    dram = read_dram("hbm1", refi=0, num_channels=1, mapping=["channel", "bank group", "bank", "row", "column"],
                     scheduling=scheduling)
    num_bursts = 4000
    clocks = Memory(dram).serve(requests(np.arange(num_bursts) * 64, 64))
    assert clocks == (num_bursts // 4 - 1) * 20 + 3 * 4 + 7 + 7 + 2


@BOTH
def test_channels_work_in_parallel(scheduling):
    dram = read_dram("hbm1", scheduling=scheduling)
    assert Memory(dram).serve(requests(np.arange(16) * 64, 64)) == Memory(dram).serve(requests(0, 64))


@BOTH
def test_a_request_moves_all_of_the_bursts_that_it_touches(scheduling):
    memory = Memory(read_dram("hbm1", scheduling=scheduling))
    memory.serve(requests([63, 200, 4096], [2, 1, 64], kind=KINDS.index("edges")))
    memory.serve(requests(0, 64, kind=KINDS.index("output rows")), is_write=True)
    edges = memory.traffic()["edges"]
    assert (edges.num_bursts, edges.num_bytes, edges.requested_bytes) == (4, 256, 67)
    assert list(memory.traffic()) == ["edges"]
    assert list(memory.traffic(is_write=True)) == ["output rows"]


@BOTH
@pytest.mark.parametrize("seed", range(20))
def test_no_list_is_faster_than_the_peak_and_the_second_call_finds_the_rows_open(seed, scheduling):
    rng = np.random.default_rng(seed)
    dram = read_dram("hbm1", scheduling=scheduling, refi=0)
    memory = Memory(dram)
    listed = requests(rng.integers(0, 4000, 300) * 64, rng.integers(1, 300, 300))
    clocks = memory.serve(listed)
    assert clocks / dram.clock_ghz >= memory.traffic()["weights"].num_bytes / PEAK_GB_PER_S
    misses = memory.traffic()["weights"].row_misses
    again = memory.serve(listed, clocks)
    assert again > clocks
    assert memory.traffic()["weights"].row_misses == misses       # of 256 kB, every bank has one row


@pytest.mark.parametrize("seed", range(30))
def test_without_refresh_no_slower_timing_serves_any_list_earlier(seed):
    """Which bursts hit does not depend on time, so that each clock is a largest of sums of timings."""
    rng = np.random.default_rng(seed)
    published = read_dram("hbm1", refi=0, num_channels=2, scheduling="in-order")
    name = str(rng.choice([name for name in published.timings if name not in ("refi", "rfc", "cwl")]))
    timing = {name: published.timings[name] + int(rng.integers(1, 9))}
    slower = read_dram("hbm1", refi=0, num_channels=2, scheduling="in-order", **timing)
    fast, slow = Memory(published), Memory(slower)
    for _ in range(5):
        listed = requests(rng.integers(0, 1 << 12, 50) * 64, rng.integers(1, 2000, 50))
        is_write = bool(rng.integers(2))
        assert fast.serve(listed, 0, is_write) <= slow.serve(listed, 0, is_write)


@BOTH
def test_no_request_is_done_at_once(scheduling):
    assert Memory(read_dram("hbm1", scheduling=scheduling)).serve(NO_REQUESTS, 77) == 77


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


@BOTH
@pytest.mark.parametrize(("field", "value"), [
    ("num_bytes", np.array([0])), ("num_bytes", np.array([-5])), ("num_bytes", np.array([1 << 62])),
    ("address", np.array([-1])), ("address", np.array([1 << 50])), ("kind", np.array([len(KINDS)], np.uint8)),
    ("kind", np.array([0])), ("num_bytes", np.array([1, 2])), ("address", np.array([0.5])),
    ("block", np.array([-1], np.int32))])
def test_requests_outside_their_contract_are_refused(field, value, scheduling):
    memory = Memory(read_dram("hbm1", scheduling=scheduling))
    with pytest.raises(ConfigError):
        memory.serve(requests(0, 64)._replace(**{field: value}))
