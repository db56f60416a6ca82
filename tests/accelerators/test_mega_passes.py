"""Passes of MEGA: every byte that must move does, and requests are sound."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from accelerator_workloads import walk
from mega_setup import MODELS, ROWS_A_SUBGRAPH, all_blocks, small_design, small_workload, walked

from hpcgnn.accelerators.mega import passes
from hpcgnn.accelerators.mega.layout import SCHEDULES, Rules, stored_rows
from hpcgnn.accelerators.schedule import KINDS
from hpcgnn.accelerators.subgraphs import blocks_of, subgraphs_of
from hpcgnn.errors import ConfigError

SHAPES = {"usual": {}, "hub": {"hub": True}, "no arcs": {"num_arcs": 0}, "one node": {"num_nodes": 1, "num_arcs": 0},
          "one node with an arc": {"num_nodes": 1, "num_arcs": 1}, "all rows zero": {"density": 0}}


def spans(blocks, side, *kinds):
    """What requests of these kinds ask for, as sorted (first byte, last byte + 1)."""
    asked = [(int(address), int(address + size)) for run in blocks for _, address, size, kind in zip(
        *getattr(run, side), strict=True) if KINDS[kind] in kinds]
    return sorted(asked)


def touched(asked):
    """Different bytes of spans."""
    total, end = 0, -1
    for first, last in asked:
        total, end = total + max(last - max(first, end), 0), max(end, last)
    return total


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("storage", ["package", "bitmap"])
def test_blocks_are_sound(shape, model, schedule, storage):
    design = small_design(schedule=schedule, storage=storage)
    workload = small_workload(model, **SHAPES[shape])
    for one in passes(design, workload):
        assert walk(one, design).cycles


@pytest.mark.covering(1)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_regions_of_different_kinds_do_not_overlap(model, schedule):
    blocks = all_blocks(small_design(schedule=schedule, buffers__combination=0.5), small_workload(model))
    owner = {}
    for side in ("reads", "writes"):
        for kind in set(KINDS) - {"output rows"}:       # of which the next layer's input rows are made
            for first, last in spans(blocks, side, kind):
                for byte in range(first, last):
                    assert owner.setdefault(byte, kind) == kind


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("storage", ["package", "bitmap"])
def test_every_row_of_x_is_read_once_and_every_next_one_is_written_once(model, storage):
    design, workload = small_design(storage=storage), small_workload(model)
    rules = Rules(design)
    order = subgraphs_of(workload.indptr, workload.indices, ROWS_A_SUBGRAPH[model]).order
    stored = []
    for product in workload.products:
        rows = replace(product.rows, nonzeros=product.rows.nonzeros[order], bit_width=product.rows.bit_width[order])
        stored.append(stored_rows(rows, rules).num_bytes)
    through_dram = stored[0] + sum(number for number in stored[1:] if number > 256)
    blocks = all_blocks(design, workload)
    read = spans(blocks, "reads", "input rows", "positions")
    assert touched(read) == sum(last - first for first, last in read) == through_dram
    last = workload.products[-1]
    sums = workload.num_nodes * -(-16 * (last.aggregated_dim or last.combined_dim) // 8)
    written = spans(blocks, "writes", "output rows")
    assert touched(written) == sum(last - first for first, last in written) == through_dram - stored[0] + sums


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_arc_is_read_once_a_product_and_every_source_once_a_subgraph(schedule):
    workload = small_workload("sage")
    dropped = round(0.1 * workload.num_arcs) if schedule == "gcod" else 0
    blocks = all_blocks(small_design(schedule=schedule, column_bytes=1, edge_bytes=1000), workload)
    read = spans(blocks, "reads", "edges")
    num_bytes = sum(last - first for first, last in read)
    assert touched(read) == num_bytes and num_bytes // 1000 == 2 * (workload.num_arcs - dropped)
    cut = subgraphs_of if SCHEDULES[schedule][0] else blocks_of
    rows = cut(workload.indptr, workload.indices, 32).rows
    pairs = np.unique(np.repeat(rows.cluster_of_rows(), np.diff(rows.indptr)) * rows.num_rows + rows.indices)
    num_columns = len(pairs) + workload.num_nodes       # the second product has one subgraph
    assert num_bytes % 1000 == num_columns or (dropped and num_bytes % 1000 < num_columns)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_halves_of_rows_are_written_if_a_later_subgraph_reads_them(schedule):
    workload = small_workload("sage")
    (_, combining), (_, aggregating) = walked(small_design(schedule=schedule, buffers__combination=1), workload)[:2]
    cut = subgraphs_of if SCHEDULES[schedule][0] else blocks_of
    num_later = workload.num_nodes - int(cut(workload.indptr, workload.indices, 32).rows.start[1])
    first_halves = num_later if schedule.startswith("condense") else workload.num_nodes
    written, read = spans(combining, "writes", "combined rows"), spans(aggregating, "reads", "combined rows")
    assert touched(written) == sum(last - first for first, last in written) == (num_later + first_halves) * 8
    own = spans(aggregating, "reads", "combined rows")[-1]
    assert own[1] == written[-1][1] and touched(read) >= num_later * 8 + own[1] - own[0]


@pytest.mark.covering(1)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_runs_of_other_lengths_are_of_the_same_blocks(model, schedule, monkeypatch):
    design, workload = small_design(schedule=schedule, buffers__combination=0.5), small_workload(model)
    whole = [walk(one, design) for one in passes(design, workload)]
    module = sys.modules["hpcgnn.accelerators.mega.passes"]      # hpcgnn.accelerators.mega.passes is its function
    monkeypatch.setattr(module, "BLOCKS_A_RUN", 2)
    monkeypatch.setattr(module, "ENTRIES_A_RUN", 100)
    for one, expected in zip(passes(design, workload), whole, strict=True):
        assert len(list(one.blocks())) > 1 or len(expected.cycles) <= 6
        assert walk(one, design) == expected


def test_subgraphs_are_one_where_the_sums_of_a_narrow_layer_fit_together():
    names = [one.name for one, _ in walked(small_design(), small_workload("gcn"))]
    assert names == ["product 0 combination", "product 0 aggregation", "product 1 combination"]
    smaller = small_design(buffers__aggregation=1)
    first, second = (blocks for one, blocks in walked(smaller, small_workload("gcn")) if "aggregation" in one.name)
    assert [sum(len(run.cycles) for run in blocks) for blocks in (first, second)] == [7, 1]


def test_a_design_that_lacks_a_number_is_refused():
    design = small_design()
    for section, name in (("units", "bse"), ("buffers", "sparse"), ("rules", "line_bytes")):
        less = {key: value for key, value in getattr(design, section).items() if key != name}
        with pytest.raises(ConfigError, match=f"lacks {name}"):
            passes(replace(design, **{section: less}), small_workload())


@pytest.mark.parametrize(("change", "complaint"), [
    ({"schedule": "other"}, "choose one of condense"), ({"storage": "csr"}, "choose one of package"),
    ({"policy": "random"}, "choose one of lru"), ({"rows_a_block": 0}, "whole number of 1 or more"),
    ({"package_lengths": [64, 32, 192]}, "do not descend"), ({"package_lengths": 5}, "are 5; expected three"),
    ({"package_lengths": ["a", "b", "c"]}, "expected three"),
    ({"combination_fill": "long"}, "is 'long'; expected a whole"), ({"fuse_first_subgraph": "maybe"}, "true or false"),
    ({"pruned_share": 2}, "pruned_share of .* is 2; expected 0 to 1"), ({"units__bse": 31}, "too few for a C-PE"),
    ({"buffers__aggregation": 0.03}, "hold no row of 16 columns")])
def test_a_design_that_can_not_be_is_refused(change, complaint):
    with pytest.raises(ConfigError, match=complaint):
        passes(small_design(**change), small_workload())
