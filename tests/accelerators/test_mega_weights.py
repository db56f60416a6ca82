"""W comes through the Weight Buffer once, or again for each window of rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mega_setup import small_design

from hpcgnn.accelerators.mega.layout import Rules
from hpcgnn.accelerators.mega.units import weight_loads
from hpcgnn.accelerators.schedule import block_start_of


def windows_by_loop(row_bytes, counts, most_bytes, most_values):
    bounds, held, values = [0], 0, 0
    for row, (size, count) in enumerate(zip(row_bytes, counts, strict=True)):
        if row > bounds[-1] and (held + size > most_bytes or values + count > most_values):
            bounds.append(row)
            held = values = 0
        held, values = held + size, values + count
    return [*bounds, len(row_bytes)]


@settings(max_examples=150, deadline=None)
@given(num_rows=st.integers(1, 60), dim=st.sampled_from([3, 20, 90, 600]), combined_dim=st.sampled_from([1, 40, 128]),
       input_kb=st.sampled_from([0.25, 1, 64]), weight_kb=st.sampled_from([0.25, 1, 4, 48]),
       density=st.sampled_from([0.02, 0.5]), seed=st.integers(0, 9))
def test_w_is_loaded_by_the_cheapest_way_that_fits(num_rows, dim, combined_dim, input_kb, weight_kb, density, seed):
    rng = np.random.default_rng(seed)
    row_bytes, count = rng.integers(1, 60, num_rows), rng.binomial(dim, density, num_rows)
    rules = Rules(small_design(buffers__input=input_kb, buffers__weight=weight_kb))
    loads = weight_loads(np.concatenate([[0], np.cumsum(row_bytes)]), count, dim, combined_dim, rules)
    half, of_row = int(weight_kb * 512), -(-combined_dim // 2)
    windows = windows_by_loop(row_bytes, count, input_kb * 512, np.inf)
    scarce = windows_by_loop(row_bytes, count, input_kb * 512, max(half // of_row, 1))
    ways = {"by need": int(count.sum()) * of_row}
    if dim * 16 <= half:
        ways["streamed"] = (len(windows) - 1) * dim * of_row
    if dim * of_row <= half:
        ways = {"resident": dim * of_row}
    assert loads.num_bytes.sum() == min(ways.values()) == ways[loads.name]
    assert loads.window_start.tolist() == (scarce if loads.name == "by need" else windows)
    assert (np.diff(loads.load) >= 0).all()
    for window, (first, last) in enumerate(pairwise(loads.window_start)):
        assert loads.name != "by need" or (loads.load == window).sum() == count[first:last].sum()
        offset, size = loads.offset[loads.load == window], loads.num_bytes[loads.load == window]
        assert (offset[1:] >= (offset + size)[:-1]).all()
        evenly = [place * dim // len(offset) * of_row for place in range(len(offset))]
        assert loads.name != "by need" or offset.tolist() == evenly
        assert not len(offset) or (offset[0] == 0 and offset[-1] + size[-1] <= dim * of_row)


def test_rows_that_are_on_the_chip_are_one_window():
    rules = Rules(small_design(buffers__weight=1))
    loads = weight_loads(np.zeros(101, int), np.full(100, 10), 30, 128, rules)
    assert loads.name == "streamed" and loads.window_start.tolist() == [0, 100] and loads.num_bytes.tolist() == [1920]


def test_blocks_are_windows_that_are_not_too_large():
    assert block_start_of(np.array([0, 3, 10, 11]), 4).tolist() == [0, 3, 7, 10, 11]
    assert block_start_of(np.array([0, 8]), 4).tolist() == [0, 4, 8]
