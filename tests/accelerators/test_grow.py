"""GROW: rows, cache and misses are what loops over rows and arcs count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from accelerator_workloads import (
    SHAPES,
    columns_added,
    columns_left,
    covered,
    made_design,
    random_workload,
    sizes_of,
    walk,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.accelerators.grow import combination_plan, passes
from hpcgnn.accelerators.subgraphs import subgraphs_of

RULES = {"rows_a_cluster": 6, "seed": 0, "runahead": 3, "sum_bits": 32, "id_bytes": 4, "list_id_bytes": 3}


def grow(bit_width=32, cache=0.0625, hdn_list=0.0625, **rules):
    return made_design("grow", {"mac": 4}, {"sparse": 1, "list": hdn_list, "cache": cache, "output": 1}, RULES | rules,
                       bit_width)


def runs_of_rows(graph, ahead):
    """(cluster, rows) of each block."""
    return [(cluster, range(first, min(first + ahead, end)))
            for cluster, (begin, end) in enumerate(zip(graph.start[:-1], graph.start[1:], strict=True))
            for first in range(begin, end, ahead)]


def aggregation_by_loop(design, graph, product):
    """(combined bytes, list bytes, edge bytes, cycles) of each block."""
    size, dim, own = design.bit_width // 8, product.aggregated_dim, columns_added(product)
    capacity = min(int(design.buffers["cache"] * 1024) // (dim * size), int(design.buffers["list"] * 1024) // 3)
    blocks, seen = [], set()
    for cluster, rows in runs_of_rows(graph, design.rules["runahead"]):
        inside = range(graph.start[cluster], graph.start[cluster + 1])
        uses = Counter(int(u) for v in inside for u in graph.indices[graph.indptr[v]:graph.indptr[v + 1]]
                       if u in inside)
        cached = sorted(uses, key=lambda u: (-uses[u], u))[:capacity]
        filled = 0 if cluster in seen else len(cached)
        seen.add(cluster)
        arcs = [int(u) for v in rows for u in graph.indices[graph.indptr[v]:graph.indptr[v + 1]]]
        missed = {u for u in arcs if u not in cached}
        blocks.append(((filled + len(missed)) * dim * size + len(rows) * own * size, 3 * filled,
                       4 * (len(rows) + len(arcs)), (len(arcs) * -(-dim // 4) + len(rows) * -(-own // 4),)))
    return blocks


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"bit_width": 8}, {"cache": 0.03125}, {"cache": 4}, {"hdn_list": 0.0078125},
                                     {"rows_a_cluster": 100, "runahead": 1}])
def test_passes_are_what_loops_over_rows_and_arcs_count(shape, options):
    workload, design = random_workload(2, **shape), grow(**options)
    graph = subgraphs_of(workload.indptr, workload.indices, design.rules["rows_a_cluster"], 0)
    made, size = iter(passes(design, workload)), design.bit_width // 8
    for index, product in enumerate(workload.products):
        nonzeros = product.rows.nonzeros.sum(axis=1)[graph.order]
        combination = walk(next(made), design)
        panels = len(combination_plan(design, product).panel_start) - 1
        assert combination.read_bytes("input rows") == panels * (4 * workload.num_nodes + (4 + size) * nonzeros.sum())
        assert combination.events["mac"] == nonzeros.sum() * product.combined_dim
        written = workload.num_nodes * product.combined_dim * size
        if product.aggregated_dim:
            assert combination.written_bytes("combined rows") == written
            walked = walk(next(made), design)
            expected = aggregation_by_loop(design, graph.rows, product)
            assert [sizes_of(block, "combined rows") for block in walked.reads] == [block[0] for block in expected]
            assert [sizes_of(block, "lists") for block in walked.reads] == [block[1] for block in expected]
            assert [sizes_of(block, "edges") for block in walked.reads] == [block[2] for block in expected]
            assert walked.cycles == [block[3] for block in expected]
            assert walked.events["mac"] == (workload.num_arcs * product.aggregated_dim
                                            + workload.num_nodes * columns_added(product))
            combination = walked
        if index + 1 < len(workload.products):
            after = workload.products[index + 1].rows
            written = 4 * workload.num_nodes + (4 + size) * int(after.nonzeros.sum())
        else:
            written = workload.num_nodes * columns_left(product) * size
        assert combination.written_bytes("output rows") == written
    assert next(made, None) is None


def weights_by_loop(design, product, order):
    """Bytes of W that blocks of one cluster read."""
    plan, total = combination_plan(design, product), 0
    rows = product.rows.__class__(product.rows.nonzeros[order], product.rows.bit_width, product.rows.dim)
    columns = [[] for _ in range(rows.num_rows)]
    for row, column in zip(*(array.tolist() for array in rows.spread_columns(0, rows.num_rows)), strict=True):
        columns[row].append(column)
    for dim in np.diff(plan.panel_start):
        total += plan.num_cached * dim * 4
        for first in range(0, rows.num_rows, design.rules["runahead"]):
            needed = {column for row in columns[first:first + design.rules["runahead"]] for column in row}
            total += sum(column >= plan.num_cached for column in needed) * dim * 4
    return total


@pytest.mark.parametrize("cache", [0.0078125, 0.03125, 0.25, 4])
@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
def test_rows_of_weights_are_cached_or_read_once_a_block(cache, density):
    workload, design = random_workload(9, 20, 30, (24, 7), density), grow(cache=cache, rows_a_cluster=100)
    order = subgraphs_of(workload.indptr, workload.indices, 100, 0).order
    assert walk(passes(design, workload)[0], design).read_bytes("weights") == weights_by_loop(
        design, workload.products[0], order)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 9), st.sampled_from([0.05, 0.3, 1.0]),
       st.sampled_from([0.001, 0.03125, 0.1, 0.5]))
@settings(max_examples=60, deadline=None)
def test_no_other_number_of_panels_reads_less(seed, dim, columns, density, cache):
    product = random_workload(seed, 8, 0, (dim, columns), density).products[0]
    design, nonzeros = grow(cache=cache), product.rows.nonzeros.sum(axis=0)
    widths = [len(range(s * product.rows.slice_dim, min(dim, (s + 1) * product.rows.slice_dim))) for s in range(4)]

    def num_bytes(panels, cached):
        hits = sum(int(n) * min(max(cached - s * product.rows.slice_dim, 0), w) // max(w, 1)
                   for s, (n, w) in enumerate(zip(nonzeros, widths, strict=True)))
        return panels * (4 * 8 + 8 * nonzeros.sum()) + (cached + nonzeros.sum() - hits) * 4 * columns

    choices = {p: min(dim, int(cache * 1024) // (4 * -(-columns // p))) for p in range(1, columns + 1)}
    plan = combination_plan(design, product)
    assert plan.num_cached * np.diff(plan.panel_start).max() * 4 <= cache * 1024
    least = min(num_bytes(panels, cached) for panels, cached in choices.items())
    assert num_bytes(len(plan.panel_start) - 1, plan.num_cached) <= least


def test_each_rows_own_columns_are_read_from_where_they_were_written():
    workload, design = random_workload(6, 20, 30, (9, 5), own=True), grow()
    combination, aggregation = (walk(made, design) for made in passes(design, workload))
    first = min(address for block in combination.writes for _, address, _ in block)
    read = covered(request for block in aggregation.reads for request in block if request[0] == "combined rows")
    own = {first + 40 * row + byte for row in range(20) for byte in range(20, 40)}
    assert own <= read
