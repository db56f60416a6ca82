"""Passes of MEGA: every byte that must move does, and requests are sound."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from mega_setup import (
    MODELS,
    ROWS_A_SUBGRAPH,
    bytes_by_kind,
    random_rows,
    small_design,
    small_workload,
    total_events,
    walked,
)

from hpcgnn.accelerators.design import read_design
from hpcgnn.accelerators.mega import passes
from hpcgnn.accelerators.mega.layout import SCHEDULES, Rules, stored_rows
from hpcgnn.accelerators.schedule import KINDS
from hpcgnn.accelerators.subgraphs import blocks_of, subgraphs_of
from hpcgnn.accelerators.workload import Product, Workload
from hpcgnn.errors import ConfigError

SHAPES = {"usual": {}, "hub": {"hub": True}, "no arcs": {"num_arcs": 0}, "one node": {"num_nodes": 1, "num_arcs": 0},
          "one node with an arc": {"num_nodes": 1, "num_arcs": 1}, "all rows zero": {"density": 0}}


def all_blocks(design, workload):
    return [run for _, blocks in walked(design, workload) for run in blocks]


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
    for one, blocks in walked(design, workload):
        assert sum(len(run.cycles) for run in blocks)
        for run in blocks:
            assert run.cycles.shape[1] == len(one.stages) and run.cycles.dtype == np.int64 and (run.cycles >= 0).all()
            for asked in (run.reads, run.writes):
                assert [field.dtype for field in asked] == [np.int32, np.int64, np.int64, np.uint8]
                assert (np.diff(asked.block) >= 0).all() and (asked.num_bytes > 0).all() and (asked.address >= 0).all()
                assert not len(asked.block) or (asked.block[0] >= 0 and asked.block[-1] < len(run.cycles))
            names = {f"{side}:{name}" for side in ("read", "write") for name in design.buffers} | set(design.units)
            assert set(run.events) <= names and all(type(count) is int and count >= 0 for count in run.events.values())


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
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pass_can_be_walked_again(model, schedule):
    for one in passes(small_design(schedule=schedule), small_workload(model)):
        first, second = list(one.blocks()), list(one.blocks())
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert np.array_equal(a.cycles, b.cycles) and a.events == b.events
            assert all(np.array_equal(x, y) for x, y in zip(a.reads + a.writes, b.reads + b.writes, strict=True))


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


def test_x_that_the_input_buffer_holds_stays_there():
    workload = small_workload("gin")
    blocks = all_blocks(small_design(buffers__input=64), workload)
    first = stored_rows(workload.products[0].rows, Rules(small_design())).num_bytes
    assert abs(touched(spans(blocks, "reads", "input rows", "positions")) - first) < 200      # rows are in other order
    assert touched(spans(blocks, "writes", "output rows")) == workload.num_nodes * 6


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


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_runs_of_other_lengths_are_of_the_same_blocks(model, schedule, monkeypatch):
    design, workload = small_design(schedule=schedule, buffers__combination=0.5), small_workload(model)
    whole = walked(design, workload)
    module = sys.modules["hpcgnn.accelerators.mega.passes"]      # hpcgnn.accelerators.mega.passes is its function
    monkeypatch.setattr(module, "BLOCKS_A_RUN", 2)
    monkeypatch.setattr(module, "ENTRIES_A_RUN", 100)
    for (_, one), (_, many) in zip(whole, walked(design, workload), strict=True):
        assert len(one) == 1 and (len(many) > 1 or len(one[0].cycles) <= 6)
        assert np.array_equal(one[0].cycles, np.concatenate([run.cycles for run in many]))
        assert total_events(one) == total_events(many)
        before = np.cumsum([0] + [len(run.cycles) for run in many])
        for side in ("reads", "writes"):
            asked = [getattr(run, side) for run in many]
            block = np.concatenate([part.block + first for part, first in zip(asked, before[:-1], strict=True)])
            assert np.array_equal(getattr(one[0], side).block, block)
            for field in ("address", "num_bytes", "kind"):
                assert np.array_equal(getattr(getattr(one[0], side), field),
                                      np.concatenate([getattr(part, field) for part in asked]))


def test_subgraphs_are_one_where_the_sums_of_a_narrow_layer_fit_together():
    names = [one.name for one, _ in walked(small_design(), small_workload("gcn"))]
    assert names == ["product 0 combination", "product 0 aggregation", "product 1 combination"]
    smaller = small_design(buffers__aggregation=1)
    first, second = (blocks for one, blocks in walked(smaller, small_workload("gcn")) if "aggregation" in one.name)
    assert [sum(len(run.cycles) for run in blocks) for blocks in (first, second)] == [7, 1]


@pytest.mark.parametrize(("buffer", "kinds", "schedule"), [
    ("input", ("weights", "input rows", "positions"), "condense"), ("weight", ("weights",), "condense"),
    ("combination", ("combined rows",), "naive"), ("aggregation", ("combined rows", "condensed rows"), "condense-ids")])
@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_a_wider_buffer_never_reads_more(buffer, kinds, schedule, model):
    workload, before = small_workload(model, num_nodes=300, num_arcs=1500), np.inf
    for size in (0.25, 0.5, 1, 2, 4, 8, 64):
        design = small_design(schedule=schedule, **{"buffers__combination": 4, f"buffers__{buffer}": size})
        read = bytes_by_kind(all_blocks(design, workload), "reads")
        now = sum(read[kind] for kind in kinds)
        assert now <= before
        before = now


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


def test_the_design_of_table_4_is_read():
    design = read_design("mega")
    assert sum(design.buffers.values()) == 392 and Rules(design).pes_per_tile == 32
    workload = small_workload(num_nodes=40, num_arcs=100)
    rows = Product("wide", random_rows(40, 1433, density=0.02), 128, 128)
    whole = Workload("wide", workload.indptr, workload.indices, (rows,))
    assert [one.name for one in passes(design, whole)] == ["wide combination"]
