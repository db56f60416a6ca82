"""The simulated cache of rows does what a list of rows does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.accelerators.rows import RowCache
from hpcgnn.errors import ConfigError


def missed_by_list(num_bytes, capacity, uses):
    """Which uses miss, with the held rows in a list from the oldest to the newest use."""
    held, missed = [], []
    for row in uses:
        missed.append(row not in held)
        if row in held:
            held.remove(row)
        elif num_bytes[row] > capacity:
            continue
        while sum(num_bytes[other] for other in held) + num_bytes[row] > capacity:
            held.pop(0)
        held.append(row)
    return missed, sum(num_bytes[row] for row in held)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(0, 25), st.data())
@settings(max_examples=300, deadline=None)
def test_uses_miss_as_in_a_list(num_bytes, capacity, data):
    uses = data.draw(st.lists(st.integers(0, len(num_bytes) - 1), max_size=60))
    cut = data.draw(st.integers(0, len(uses)))
    cache = RowCache(np.array(num_bytes), capacity)
    found = [*cache.missed(np.array(uses[:cut], np.int64)), *cache.missed(np.array(uses[cut:], np.int64))]
    assert (found, cache.held_bytes) == missed_by_list(num_bytes, capacity, uses)


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_a_larger_cache_of_equal_rows_never_misses_more(seed):
    uses = np.random.default_rng(seed).integers(0, 30, 200)
    misses = [RowCache(np.full(30, 4), capacity).missed(uses).sum() for capacity in range(0, 124, 4)]
    assert misses == sorted(misses, reverse=True) and misses[0] == 200 and misses[-1] == len(set(uses.tolist()))


def test_more_rows_than_ids_are_refused():
    with pytest.raises(ConfigError, match="a cache can name"):
        RowCache(np.broadcast_to(np.int64(1), 2**31), 4)
