"""DRAMs and lists of requests drawn at random, and what Memory makes of them, in the words of reference_dram."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hpcgnn.accelerators.dram import Memory, read_dram
from hpcgnn.accelerators.schedule import KINDS, Requests

MAPPINGS = [("channel", "bank group", "column", "bank", "row"), ("channel", "column", "bank group", "bank", "row"),
            ("column", "channel", "bank", "bank group", "row"), ("channel", "row", "bank", "column", "bank group"),
            ("bank", "channel", "bank group", "column", "row"), ("channel", "bank", "bank group", "row", "column")]


def requests(address, num_bytes, kind=0):
    """Requests of one block and one kind."""
    address = np.atleast_1d(np.asarray(address, np.int64))
    full = [np.full(len(address), value, dtype) for value, dtype in ((0, np.int32), (kind, np.uint8))]
    return Requests(full[0], address, np.array(np.broadcast_to(num_bytes, address.shape), np.int64), full[1])


def random_dram(rng, scheduling):
    """Few banks and rows, other timings; a refresh, if any, comes often."""
    if rng.random() < 0.2:
        return read_dram("hbm1", num_channels=2, num_rows=64, scheduling=scheduling)
    published = read_dram("hbm1").timings
    timings = {name: int(rng.integers(1, 2 * value + 1)) for name, value in published.items()}
    timings["cwl"] = min(timings["cwl"], timings["cl"])
    timings["rfc"] = int(rng.integers(1, 40))
    timings["refi"] = int(rng.choice([0, 400]))
    return read_dram("hbm1", num_channels=int(rng.choice([1, 2, 4])), num_bank_groups=int(rng.choice([1, 2, 4])),
                     banks_per_group=int(rng.choice([1, 2])), row_bytes=int(rng.choice([128, 256, 512])),
                     burst_length=int(rng.choice([2, 4, 8])) if rng.random() < 0.3 else 4, num_rows=64,
                     queue_depth=int(rng.choice([1, 2, 5, 32])), mapping=MAPPINGS[rng.integers(len(MAPPINGS))],
                     scheduling=scheduling, **timings)


def random_wide_dram(rng, scheduling):
    """Rows as long as the published ones, or nearly, and timings near them, so that streams become steady."""
    timings = {name: int(rng.integers(max(1, value // 2), value * 3 // 2 + 1))
               for name, value in read_dram("hbm1").timings.items()}
    timings["cwl"] = min(timings["cwl"], timings["cl"])
    timings["refi"] = int(rng.choice([0, 400, 700, 1950]))
    timings["rfc"] = int(rng.integers(1, 100))
    return read_dram("hbm1", num_channels=2, num_bank_groups=int(rng.choice([1, 2, 4])),
                     row_bytes=int(rng.choice([512, 1024, 2048])), num_rows=int(rng.choice([4, 256])),
                     queue_depth=int(rng.choice([3, 5, 6, 16, 32, 60])), scheduling=scheduling,
                     mapping=MAPPINGS[0 if rng.random() < 0.8 else 1], **timings)


def random_calls(rng, dram):
    """Some lists of requests: short and long, near each other and far apart, ready early and late."""
    calls, ready = [], 0
    for _ in range(rng.integers(1, 5)):
        longest = int(rng.choice([1, 100, 700, 4000]))
        limit = min(int(rng.choice([4096, dram.capacity_bytes])), dram.capacity_bytes)
        listed = []
        for _ in range(rng.integers(1, 8)):
            num_bytes = int(rng.integers(1, min(longest, limit) + 1))
            listed.append((int(rng.integers(0, limit - num_bytes + 1)), num_bytes, int(rng.integers(len(KINDS)))))
        calls.append((ready, bool(rng.random() < 0.4), listed))
        ready += int(rng.choice([0, 30, 1500]))
    return calls


def served(dram, calls):
    """The same as reference_dram.serve, by the model: bursts counted by (kind, is_write, is_hit)."""
    memory, done = Memory(dram), []
    for ready, is_write, listed in calls:
        address, num_bytes, kind = (np.array(column) for column in zip(*listed, strict=True))
        done.append(memory.serve(requests(address, num_bytes, kind), ready, is_write))
    counts = Counter()
    for is_write in (False, True):
        for kind, traffic in memory.traffic(is_write).items():
            counts[KINDS.index(kind), is_write, True] = traffic.row_hits
            counts[KINDS.index(kind), is_write, False] = traffic.row_misses
            assert traffic.num_bytes == traffic.num_bursts * dram.burst_bytes
            asked = [size for _, write, listed in calls for _, size, of in listed
                     if write == is_write and KINDS[of] == kind]
            assert traffic.requested_bytes == sum(asked)
    return done, +counts
