"""HyGCN: intervals, windows and both engines do what loops over rows and arcs do."""

from __future__ import annotations

import numpy as np
import pytest
from accelerator_workloads import columns_added, columns_left, made_design, random_workload, sizes_of, walk
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.accelerators.hygcn import passes, windows_of
from hpcgnn.errors import ConfigError

RULES = {"order": "aggregation-first", "simd_width": 2, "systolic_rows": 2, "sum_bits": 32, "id_bytes": 4}
BUFFERS = {"input": 0.0625, "edge": 1, "weight": 0.25, "output": 0.125, "aggregation": 0.25}
WORKLOADS = [
    {"num_nodes": 13, "num_arcs": 40, "dims": (5, 3)},
    {"num_nodes": 9, "num_arcs": 20, "dims": (6, 4, 2), "own": True},
    {"num_nodes": 11, "num_arcs": 30, "dims": (40, 5, 3), "last_is_plain": True},
    {"num_nodes": 12, "num_arcs": 0, "dims": (4, 2)},
    {"num_nodes": 1, "num_arcs": 1, "dims": (1, 1)},
    {"num_nodes": 12, "num_arcs": 20, "dims": (20, 3), "has_hub": True, "own": True},
    {"num_nodes": 9, "num_arcs": 20, "dims": (3, 40), "own": True},
]


def hygcn(order="aggregation-first", bit_width=32, **buffers):
    return made_design("hygcn", {"mac": 6, "simd": 4}, BUFFERS | buffers, RULES | {"order": order}, bit_width)


def windows_by_loop(sources, height):
    """Slide down to a source that is not covered, take `height` rows, shrink to the last source."""
    windows, covered = [], -1
    for source in sorted(sources):
        if source > covered:
            covered = source + height - 1
            windows.append((source, max(s for s in sources if s <= covered) - source + 1))
    return windows


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=60), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_windows_slide_and_shrink(arcs, height):
    interval, source = np.array(arcs, np.int64).reshape(-1, 2).T
    found = windows_of(interval, source, 31, height)
    expected = [(i, *window) for i in range(5) for window in windows_by_loop({s for j, s in arcs if j == i}, height)]
    assert list(zip(*(array.tolist() for array in found), strict=True)) == expected


def plan_by_loop(design, dim, results, fewest):
    """Rows a block, and the columns of a slice."""
    sums = int(design.buffers["aggregation"] * 1024) // 2 // 4
    rows = max(1, int(design.buffers["output"] * 1024) // 2 // 4 // results)
    if sums // dim >= min(fewest, rows):
        return min(rows, sums // dim), dim
    return rows, min(dim, max(8, sums // rows // 8 * 8))


def blocks_by_loop(design, workload, product, dim, results, with_array):
    """(source bytes, weight bytes, edge bytes, own bytes, cycles) of each interval and slice."""
    rows_a_block, width = plan_by_loop(design, dim, results, 2 if with_array else 1)
    size, blocks, n = design.bit_width // 8, [], workload.num_nodes
    height = max(1, int(design.buffers["input"] * 1024) // 2 // (width * size))
    is_resident = product.rows.dim * product.combined_dim * size <= design.buffers["weight"] * 1024
    for first in range(0, n, rows_a_block):
        rows = range(first, min(n, first + rows_a_block))
        arcs = [int(u) for v in rows for u in workload.indices[workload.indptr[v]:workload.indptr[v + 1]]]
        loaded = sum(count for _, count in windows_by_loop(set(arcs), height))
        for begin in range(0, dim, width):
            columns = min(width, dim - begin)
            steps = len(arcs) * -(-columns // 2)
            own = len(rows) * columns_added(product) and (len(rows) * columns * size if with_array else
                                                    (begin + width >= dim) * len(rows) * columns_added(product) * size)
            cycles = [-(-steps // 2)]
            if with_array:
                weights = columns * product.combined_dim * size * (not is_resident or first == 0)
                cycles.append(-(-len(rows) // 2) * -(-product.combined_dim // 3) * columns + 3)
            else:
                weights = 0
                if begin + width >= dim:
                    cycles[0] += -(-len(rows) * -(-columns_added(product) // 2) // 2)
            blocks.append((loaded * columns * size, weights, 4 * (len(rows) + len(arcs)), own, tuple(cycles)))
    return blocks


@pytest.mark.parametrize("shape", WORKLOADS)
@pytest.mark.parametrize("bit_width", [32, 8])
@pytest.mark.parametrize("buffers", [{}, {"weight": 8}, {"aggregation": 4, "output": 2, "input": 0.5}])
def test_aggregation_first_is_what_loops_over_arcs_count(shape, bit_width, buffers):
    workload, design = random_workload(3, **shape), hygcn(bit_width=bit_width, **buffers)
    for made, product in zip(passes(design, workload), workload.products, strict=True):
        walked = walk(made, design)
        if not product.aggregated_dim:
            assert made.stages == ("combination",)
            continue
        expected = blocks_by_loop(design, workload, product, product.rows.dim, product.combined_dim, True)
        assert len(walked.cycles) == len(expected)
        for block, (rows, weights, edges, own, cycles) in enumerate(expected):
            assert sizes_of(walked.reads[block], "input rows") == rows + own
            assert sizes_of(walked.reads[block], "weights") == weights
            assert sizes_of(walked.reads[block], "edges") == edges
            assert walked.cycles[block] == cycles
        arcs, nodes = workload.num_arcs, workload.num_nodes
        assert walked.events["simd"] == arcs * product.rows.dim
        assert walked.events["mac"] == nodes * product.rows.dim * product.combined_dim
        assert walked.written_bytes("output rows") == nodes * columns_left(product) * bit_width // 8


@pytest.mark.parametrize("shape", WORKLOADS)
@pytest.mark.parametrize("buffers", [{}, {"weight": 8}, {"aggregation": 0.03125}])
def test_combination_first_multiplies_and_then_aggregates(shape, buffers):
    workload, design = random_workload(4, **shape), hygcn("combination-first", **buffers)
    made = iter(passes(design, workload))
    for product in workload.products:
        nodes, dim = workload.num_nodes, product.rows.dim
        combination = walk(next(made), design)
        assert combination.read_bytes("input rows") == nodes * dim * 4
        assert combination.events["mac"] == nodes * dim * product.combined_dim
        rows_a_block = max(1, int(design.buffers["output"] * 1024) // 8 // product.combined_dim)
        times = 1 if dim * product.combined_dim * 4 <= design.buffers["weight"] * 1024 else -(-nodes // rows_a_block)
        assert combination.read_bytes("weights") == times * dim * product.combined_dim * 4
        assert combination.written_bytes() == nodes * product.combined_dim * 4
        assert combination.cycles == [
            (-(-min(rows_a_block, nodes - first) // 2) * -(-product.combined_dim // 3) * dim + 3,)
            for first in range(0, nodes, rows_a_block)]
        if not product.aggregated_dim:
            continue
        aggregated = product.aggregated_dim
        walked = walk(next(made), design)
        expected = blocks_by_loop(design, workload, product, aggregated, aggregated, False)
        assert walked.cycles == [cycles for *_, cycles in expected]
        assert [sizes_of(block, "combined rows") for block in walked.reads] == [
            rows + own for rows, _, _, own, _ in expected]
        assert [sizes_of(block, "edges") for block in walked.reads] == [edges for _, _, edges, _, _ in expected]
        assert walked.events["simd"] == workload.num_arcs * aggregated + nodes * columns_added(product)
        assert walked.written_bytes("output rows") == nodes * columns_left(product) * 4
    assert next(made, None) is None


@pytest.mark.parametrize(("changes", "words"), [
    ({"rules.order": "both"}, "order 'both'"), ({"units.simd": 3}, "3 SIMD lanes"), ({"units.mac": 7}, "7 MACs")])
def test_units_that_do_not_fit_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        passes(hygcn().changed(changes), random_workload(8, 4, 4, (2, 2)))
