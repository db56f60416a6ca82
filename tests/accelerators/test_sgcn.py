"""SGCN: what its engines read through the cache, and what its array multiplies, is what loops over arcs count."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from accelerator_workloads import SHAPES, columns_added, columns_left, made_design, random_workload, sizes_of, walk
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.accelerators.sgcn import RowCache, passes
from hpcgnn.errors import ConfigError

RULES = {"order": "combination-first", "sparse_input": True, "slice_columns": 3, "strip_rows": 2, "simd_width": 2,
         "systolic_rows": 2, "sum_bits": 32, "id_bytes": 4}


def sgcn(bit_width=32, cache=0.5, weight=0.0625, output=0.125, **rules):
    return made_design("sgcn", {"mac": 6, "simd": 4}, {"cache": cache, "weight": weight, "output": output, "edge": 1},
                       RULES | rules, bit_width)


def widths_of(dim, width=3):
    return [min(width, dim - first) for first in range(0, dim, width)]


def values_of(rows, width=3):
    """Values of each row in each slice of so many columns, those of MEGA's slices spread evenly: [slice][row]."""
    def before(v, column):
        number = 0
        for s in range(4):
            own = min(rows.dim, (s + 1) * rows.slice_dim) - s * rows.slice_dim
            if own > 0:
                number += int(rows.nonzeros[v, s]) * min(max(column - s * rows.slice_dim, 0), own) // own
        return number
    return [[before(v, min(rows.dim, c + width)) - before(v, c) for v in range(rows.num_rows)]
            for c in range(0, rows.dim, width)]


def in_step(num_rows, engines=2, strip=2):
    """Rows of each round in the order in which engines take them, with the engine."""
    rounds = []
    for first in range(0, num_rows, engines * strip):
        taken = [(first + engine * strip + step, engine) for step in range(strip) for engine in range(engines)]
        rounds.append([(row, engine) for row, engine in taken if row < num_rows])
    return rounds


def aggregation_by_loop(names, values, bitmap, size, capacity, num_rows, own):
    """(bytes read through the cache, cycles) of each round of a slice."""
    held, blocks = [], []

    def lines(row):
        return ceil((bitmap + values[row] * size) / 64) * 64

    for taken in in_step(num_rows):
        read, cycles = 0, [0, 0]
        for row, engine in taken:
            cycles[engine] += ceil(own / 2)
            for name in names[row]:
                cycles[engine] += max(1, ceil(values[name] / 2))
                if name in held:
                    held.remove(name)
                else:
                    read += bitmap + values[name] * size
                    if lines(name) > capacity:
                        continue
                while sum(map(lines, held)) + lines(name) > capacity:
                    held.pop(0)
                held.append(name)
        blocks.append((read, max(cycles)))
    return blocks


def names_of_arcs(workload):
    return [workload.indices[workload.indptr[v]:workload.indptr[v + 1]].tolist() for v in range(workload.num_nodes)]


def names_of_features(rows):
    names = [[] for _ in range(rows.num_rows)]
    for row, column in zip(*(array.tolist() for array in rows.spread_columns(0, rows.num_rows)), strict=True):
        names[row].append(column)
    return names


def stored_bytes(workload, index, size):
    """Bytes of the rows that a product leaves."""
    if index + 1 == len(workload.products):
        return workload.num_nodes * columns_left(workload.products[index]) * size
    after = workload.products[index + 1].rows
    return workload.num_nodes * sum(ceil(w / 8) for w in widths_of(after.dim)) + int(after.nonzeros.sum()) * size


def check_array(walked, design, product, nodes):
    """A combination in the systolic array, all of it."""
    dim, columns, size = product.rows.dim, product.combined_dim, design.bit_width // 8
    rows_a_block = max(1, 16 // columns)
    assert walked.events["mac"] == nodes * dim * columns
    assert walked.cycles == [(ceil(min(rows_a_block, nodes - first) / 2) * ceil(columns / 3) * dim + 3,)
                             for first in range(0, nodes, rows_a_block)]
    times = 1 if dim * columns * size <= design.buffers["weight"] * 1024 else ceil(nodes / rows_a_block)
    assert walked.read_bytes("weights") == times * dim * columns * size
    bitmaps = nodes * sum(ceil(w / 8) for w in widths_of(product.rows.dim))
    assert walked.read_bytes("input rows") == bitmaps + int(product.rows.nonzeros.sum()) * size


def check_engines(walked, names, widths, kinds, size, capacity, own):
    """Dense rows that engines add up, slice by slice."""
    expected, num_named = [], 1 + max((name for row in names for name in row), default=0)
    for width in widths:
        expected += aggregation_by_loop(names, [width] * num_named, 0, size, capacity, len(names), width * own)
    assert [cycles[0] for cycles in walked.cycles] == [cycles for _, cycles in expected]
    own_bytes = sum(widths) * len(names) * size * own
    assert walked.read_bytes(kinds[0]) - own_bytes == sum(read for read, _ in expected)
    if not own:
        assert [sizes_of(block, kinds[0]) for block in walked.reads] == [read for read, _ in expected]
    assert walked.read_bytes(kinds[1]) == len(widths) * (
        4 * len(names) + sum(map(len, names)) * (4 if kinds[1] == "edges" else 4 + size))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"bit_width": 8}, {"cache": 0.25}, {"cache": 8}, {"cache": 0.03125},
                                     {"sparse_input": False}])
def test_combination_first_is_what_loops_count(shape, options):
    workload, design = random_workload(2, **shape), sgcn(**options)
    made, size, capacity = iter(passes(design, workload)), design.bit_width // 8, int(design.buffers["cache"] * 1024)
    for index, product in enumerate(workload.products):
        aggregated, nodes, own = product.aggregated_dim, workload.num_nodes, bool(columns_added(product))
        widths = widths_of(aggregated) if aggregated else widths_of(product.combined_dim)
        walked = walk(next(made), design)
        if index == 0 and design.rules["sparse_input"]:
            check_engines(walked, names_of_features(product.rows), widths * (1 + own), ("weights", "input rows"), size,
                          capacity, 0)
            assert walked.events["simd"] == int(product.rows.nonzeros.sum()) * product.combined_dim
        else:
            check_array(walked, design, product, nodes)
        if aggregated:
            assert walked.written_bytes("combined rows") == nodes * product.combined_dim * size
            walked = walk(next(made), design)
            check_engines(walked, names_of_arcs(workload), widths, ("combined rows", "edges"), size, capacity, own)
            assert walked.events["simd"] == workload.num_arcs * aggregated + nodes * columns_added(product)
        assert walked.written_bytes("output rows") == stored_bytes(workload, index, size)
    assert next(made, None) is None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"bit_width": 8}, {"cache": 0.25}, {"cache": 8}, {"weight": 8}])
def test_aggregation_first_reads_compressed_rows_through_the_cache(shape, options):
    workload, design = random_workload(3, **shape), sgcn(order="aggregation-first", sparse_input=False, **options)
    size, capacity, nodes = design.bit_width // 8, int(design.buffers["cache"] * 1024), workload.num_nodes
    for index, (made, product) in enumerate(zip(passes(design, workload), workload.products, strict=True)):
        walked = walk(made, design)
        if not product.aggregated_dim:
            check_array(walked, design, product, nodes)
            continue
        names, widths, values = names_of_arcs(workload), widths_of(product.rows.dim), values_of(product.rows)
        rounds, columns = in_step(nodes), product.combined_dim
        expected = [block for width, held in zip(widths, values, strict=True)
                    for block in aggregation_by_loop(names, held, ceil(width / 8), size, capacity, nodes, 0)]
        own = [0] * len(expected)
        if columns_added(product):
            own = [sum(ceil(width / 8) + held[row] * size for row, _ in taken)
                   for width, held in zip(widths, values, strict=True) for taken in rounds]
        assert [sizes_of(block, "input rows") for block in walked.reads] == [
            read + more for (read, _), more in zip(expected, own, strict=True)]
        assert walked.cycles == [
            (cycles, ceil(len(taken) / 2) * ceil(columns / 3) * width + 3)
            for (_, cycles), (width, taken) in zip(expected, ((w, t) for w in widths for t in rounds), strict=True)]
        is_resident = sum(widths) * columns * size <= design.buffers["weight"] * 1024
        assert walked.read_bytes("weights") == sum(widths) * columns * size * (1 if is_resident else len(rounds))
        assert walked.read_bytes("partial sums") == (len(widths) - 1) * nodes * columns_left(product) * 4
        assert walked.written_bytes("partial sums") == walked.read_bytes("partial sums")
        assert walked.written_bytes("output rows") == stored_bytes(workload, index, size)
        assert walked.events["mac"] == nodes * product.rows.dim * columns
        assert walked.events["simd"] == sum(held[name] for held in values for row in names for name in row)


@pytest.mark.parametrize(("changes", "words"), [
    ({"rules.order": "both"}, "order 'both'"), ({"units.mac": 7}, "7 MACs")])
def test_what_does_not_fit_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        passes(sgcn().changed(changes), random_workload(8, 4, 4, (2, 2)))


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
@settings(max_examples=80, deadline=None)
def test_uses_miss_as_in_a_list(num_bytes, capacity, data):
    uses = data.draw(st.lists(st.integers(0, len(num_bytes) - 1), max_size=60))
    cut = data.draw(st.integers(0, len(uses)))
    cache = RowCache(np.array(num_bytes), capacity)
    found = [*cache.missed(np.array(uses[:cut], np.int64)), *cache.missed(np.array(uses[cut:], np.int64))]
    assert (found, cache.held_bytes) == missed_by_list(num_bytes, capacity, uses)


def test_more_rows_than_ids_are_refused():
    with pytest.raises(ConfigError, match="a cache can name"):
        RowCache(np.broadcast_to(np.int64(1), 2**31), 4)
