"""The engines of MEGA's model take as many cycles as when they are run cycle by cycle, and what is run is right."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mega_setup import small_design
from reference_mega import aggregate, combine, condense

from hpcgnn.accelerators.condense_traffic import Buffer
from hpcgnn.accelerators.mega.layout import Rules
from hpcgnn.accelerators.mega.units import (
    condense_cycles,
    copy_writes,
    list_reads,
    region_offsets,
    row_cycles,
    source_cycles,
    weight_loads,
)
from hpcgnn.accelerators.schedule import block_start_of
from hpcgnn.partition.condense import ClusteredRows, CondensedRegions, condensed_regions


@settings(max_examples=30, deadline=None)
@given(num_rows=st.integers(1, 5), dim=st.integers(1, 30), combined_dim=st.integers(1, 9),
       num_bse=st.sampled_from([1, 2, 8]), num_pes=st.sampled_from([2, 4]), density=st.sampled_from([0, 0.2, 1]),
       seed=st.integers(0, 99))
def test_the_combination_engine_takes_the_cycles_of_its_tiles(num_rows, dim, combined_dim, num_bse, num_pes, density,
                                                              seed):
    rng = np.random.default_rng(seed)
    width = rng.integers(1, 9, num_rows)
    codes = rng.integers(1, 1 << width[:, None], (num_rows, dim)) * (rng.random((num_rows, dim)) < density)
    weights = rng.integers(-8, 8, (dim, combined_dim))
    sums, cycles = combine(codes, width, weights, num_bse, num_pes)
    assert np.array_equal(sums, codes @ weights)
    rules = Rules(small_design(units__bse=4 * num_bse * num_pes, bse_per_pe=num_bse, crossbar_columns=num_pes // 2))
    slices = np.array_split(codes, np.arange(1, 4) * -(-dim // 4), axis=1)
    nonzeros = np.stack([(part != 0).sum(axis=1) for part in slices], axis=1)
    assert row_cycles(nonzeros, width, combined_dim, rules).sum() + rules["combination_fill"] == cycles


def test_the_combination_engine_is_that_of_table_4():
    rules = Rules(small_design())
    assert (rules.pes_per_tile, rules["bse_per_pe"], rules.least_width()) == (32, 8, 2)
    nonzeros = np.array([[8, 0, 0, 0], [9, 8, 8, 8], [1, 1, 1, 1], [0, 0, 0, 0]])
    assert row_cycles(nonzeros, np.array([3, 3, 1, 8]), 128, rules).tolist() == [12, 24, 8, 4]
    assert row_cycles(nonzeros, np.array([3, 3, 1, 8]), 33, rules).tolist() == [6, 12, 4, 2]


@settings(max_examples=30, deadline=None)
@given(num_rows=st.integers(1, 6), dim=st.integers(1, 12), num_units=st.integers(1, 12), seed=st.integers(0, 99))
def test_the_aggregation_engine_takes_the_cycles_of_its_units(num_rows, dim, num_units, seed):
    rng = np.random.default_rng(seed)
    arcs = rng.integers(-3, 4, (num_rows, num_rows)) * (rng.random((num_rows, num_rows)) < 0.5)
    rows = rng.integers(-8, 8, (num_rows, dim))
    columns = [(source, [(v, arcs[v, source]) for v in np.flatnonzero(arcs[:, source])]) for source in range(num_rows)]
    sums, cycles = aggregate(columns, rows, num_units)
    assert np.array_equal(sums, arcs @ rows)
    rules = Rules(small_design(units__aggregation_unit=num_units))
    found = source_cycles((arcs != 0).sum(axis=0), dim, rules).sum()
    assert found + rules["aggregation_fill"] * (found > 0) == cycles


def random_regions(sizes, num_entries, seed):
    rng = np.random.default_rng(seed)
    num_rows = sum(sizes)
    degree = np.bincount(rng.integers(0, num_rows, num_entries), minlength=num_rows)
    return condensed_regions(ClusteredRows(
        np.concatenate([[0], np.cumsum(sizes)]), np.concatenate([[0], np.cumsum(degree)]),
        rng.integers(0, num_rows, num_entries).astype(np.int32)))


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(sum), num_entries=st.integers(0, 90),
       num_fifos=st.integers(1, 5), row_bytes=st.integers(1, 20), port_bytes=st.sampled_from([4, 64]),
       sparse_bytes=st.integers(8, 200), line_bytes=st.sampled_from([4, 8]), seed=st.integers(0, 9))
def test_the_condense_unit_does_algorithm_1(sizes, num_entries, num_fifos, row_bytes, port_bytes, sparse_bytes,
                                            line_bytes, seed):
    regions = random_regions(sizes, num_entries, seed)
    buffer = Buffer(2 * sparse_bytes, line_bytes, sparse_share=0.5)
    lists = [regions.copied_row[first:last].tolist()
             for first, last in zip(regions.start[:-1], regions.start[1:], strict=True)]
    cycles, writes, copied = condense(lists, sum(sizes), num_fifos, row_bytes, port_bytes,
                                      buffer.sparse_bytes // len(sizes), line_bytes)
    rules = Rules(small_design(units__condense_unit=num_fifos, sparse_port_bytes=port_bytes, line_bytes=line_bytes))
    assert condense_cycles(regions, 0, sum(sizes), row_bytes, rules).tolist() == cycles
    assert copied == lists
    found, begin = copy_writes(regions, row_bytes, buffer), region_offsets(regions, row_bytes, buffer)
    subgraph = np.searchsorted(begin[1:], found.offset, "right")
    by_row = sorted(zip(found.row.tolist(), subgraph.tolist(), (found.num_bytes // line_bytes).tolist(), strict=True))
    assert by_row == sorted(writes)
    assert (found.num_bytes % line_bytes == 0).all() and (found.offset % line_bytes == 0).all()


def test_a_subgraph_that_was_aggregated_at_once_has_no_fifo():
    regions = CondensedRegions(np.array([0, 0, 2, 3]), np.array([0, 3, 3], np.int32), np.empty(0, np.int32))
    rules = Rules(small_design(units__condense_unit=1))
    assert condense_cycles(regions, 1, 4, 64, rules).tolist() == [2, 2, 2, 2]
    assert condense_cycles(regions, 0, 4, 64, rules).tolist() == [3, 3, 3, 3]
    assert condense_cycles(regions, 1, 4, 65, rules).tolist() == [3, 2, 2, 4]


@pytest.mark.parametrize("line_bytes", [4, 8, 128])
def test_lists_are_read_once_and_before_their_ids_are_compared(line_bytes):
    regions = random_regions([9, 0, 12, 7, 30], 200, seed=1)
    found = list_reads(regions, Rules(small_design(line_bytes=line_bytes)))
    order = np.argsort(found.offset)
    assert (np.append(found.offset[order][1:], 4 * regions.num_copies) == (found.offset + found.num_bytes)[order]).all()
    assert (np.diff(found.row) >= 0).all() and found.num_bytes.max() <= line_bytes
    for row, offset in zip(found.row, found.offset, strict=True):
        first = offset // 4
        assert row == (0 if first in regions.start else regions.copied_row[first - 1])


def windows_by_loop(row_bytes, counts, most_bytes, most_values):
    bounds, held, values = [0], 0, 0
    for row, (size, count) in enumerate(zip(row_bytes, counts, strict=True)):
        if row > bounds[-1] and (held + size > most_bytes or values + count > most_values):
            bounds.append(row)
            held = values = 0
        held, values = held + size, values + count
    return [*bounds, len(row_bytes)]


@settings(max_examples=60, deadline=None)
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
