"""The configurations of MEGA's peers: they can be read, run, and have what the papers' tables say."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from accelerator_workloads import columns_left, covered, random_workload, walk

from hpcgnn.accelerators import schedule
from hpcgnn.accelerators.design import check_needs, read_design
from hpcgnn.errors import ConfigError

MATCHED = {"hygcn": (16, 64), "hygcn-8bit": (16, 64), "hygcn-combination-first": (16, 64), "gcnax": (32, 0),
           "gcnax-8bit": (32, 0), "grow": (32, 0), "sgcn": (16, 64), "sgcn-aggregation-first": (16, 64)}
ORIGINAL = {"hygcn-original": (4096, 512, 24704), "gcnax-original": (16, 0, 580), "grow-original": (16, 0, 538),
            "sgcn-original": (1024, 128, 648)}
DESIGNS = [*MATCHED, *ORIGINAL]


def passes_of(design, workload):
    return import_module(f"hpcgnn.accelerators.{design.kind}").passes(design, workload)


@pytest.mark.parametrize("name", MATCHED)
def test_matched_designs_have_megas_buffers_and_the_units_of_table_v(name):
    design = read_design(name)
    assert sum(design.buffers.values()) == 392
    assert (design.units["mac"], design.units.get("simd", 0)) == MATCHED[name]
    assert design.bit_width == (8 if "8bit" in name else 32)
    assert (design.clock_ghz, design.dram, design.kind) == (1.0, "hbm1", name.partition("-")[0])


@pytest.mark.parametrize("name", ORIGINAL)
def test_original_designs_are_those_of_their_papers(name):
    design = read_design(name)
    assert (design.units["mac"], design.units.get("simd", 0), sum(design.buffers.values())) == ORIGINAL[name]


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("shape", [
    {"num_nodes": 300, "num_arcs": 900, "dims": (60, 16, 7)},
    {"num_nodes": 200, "num_arcs": 700, "dims": (60, 16, 7), "own": True, "has_hub": True},
    {"num_nodes": 150, "num_arcs": 0, "dims": (20, 8, 8, 3), "last_is_plain": True},
    {"num_nodes": 1, "num_arcs": 0, "dims": (1, 1), "density": 0}])
def test_every_design_reads_what_it_needs_and_writes_each_result_once(name, shape):
    workload, design = random_workload(1, **shape), read_design(name)
    walked = [walk(made, design) for made in passes_of(design, workload)]
    size, last = design.bit_width // 8, workload.products[-1]
    total = {name: sum(w.read_bytes(name) for w in walked) for name in ("weights", "edges", "input rows")}
    aggregated = [product for product in workload.products if product.aggregated_dim]
    assert total["edges"] >= 4 * workload.num_arcs * len(aggregated)
    results = [request for w in walked for block in w.writes for request in block if request[0] == "output rows"]
    assert len(covered(results)) == sum(num_bytes for _, _, num_bytes in results)
    assert walked[-1].written_bytes("output rows") == workload.num_nodes * columns_left(last) * size
    # Without arcs (AX)W needs no row.
    read = [product for product in workload.products if workload.num_arcs or not product.aggregated_dim]
    assert total["input rows"] >= sum(int(product.rows.nonzeros.sum()) for product in read) * size
    operations = sum(w.events.get("mac", 0) + w.events.get("simd", 0) for w in walked)
    assert operations >= sum(int(product.rows.nonzeros.sum()) * product.combined_dim for product in workload.products)


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("own", [False, True])
def test_what_is_read_was_written_before(name, own):
    workload, design = random_workload(4, 40, 120, (9, 5, 3), own=own, has_hub=True), read_design(name)
    read, written = set(), set()
    for made in passes_of(design, workload):
        walked = walk(made, design)
        of_passes = ("combined rows",) if made.name.startswith("layer 0") else ("combined rows", "input rows")
        read |= covered(request for block in walked.reads for request in block if request[0] in of_passes)
        assert read <= written
        written |= covered(request for block in walked.writes for request in block)
    assert read


@pytest.mark.parametrize("name", DESIGNS)
def test_regions_of_dram_do_not_overlap(name):
    workload, design = random_workload(3, 80, 300, (24, 9, 5), own=True, has_hub=True), read_design(name)
    owner = {}
    for number, made in enumerate(passes_of(design, workload)):
        walked = walk(made, design)
        for kind, address, size in (request for block in [*walked.reads, *walked.writes] for request in block):
            what = "arcs" if kind == "edges" else f"{kind} {number}"
            for byte in range(address, address + size):
                others = owner.setdefault(byte, set())
                others.add(what)
    for whats in owner.values():
        kinds = {what.partition(" ")[0] for what in whats}
        assert kinds in ({"arcs"}, {"lists"}, {"weights"}, {"combined"}, {"partial"}, {"input"}, {"output"},
                         {"output", "input"}), whats


@pytest.mark.parametrize("name", DESIGNS)
def test_large_and_small_runs_have_the_same_blocks(name, monkeypatch):
    workload, design = random_workload(4, 60, 240, (24, 9, 5), own=True), read_design(name)
    whole = [walk(made, design) for made in passes_of(design, workload)]
    assert whole == [walk(made, design) for made in passes_of(design, workload)]
    monkeypatch.setattr(schedule.runs_of, "__defaults__", (1,))
    assert np.all([walk(made, design) == one for made, one in zip(passes_of(design, workload), whole, strict=True)])


# From which buffer, and for which kinds of reads; columns that a row adds of its own pass by in GCNAX and GROW.
FILLED = {
    "hygcn": {"edge": ("edges",), "weight": ("weights",), "input": ("input rows", "combined rows")},
    "gcnax": {"sparse": ("edges", "input rows"), "dense": ("weights", "combined rows")},
    "grow": {"sparse": ("edges", "input rows"), "list": ("lists",)},
    "sgcn": {"edge": ("edges",), "cache": ("combined rows",)},
}


@pytest.mark.parametrize("name", DESIGNS)
def test_what_comes_from_dram_is_written_into_a_buffer_once(name):
    workload, design = random_workload(5, 90, 400, (40, 16, 7), has_hub=True), read_design(name)
    for made in passes_of(design, workload):
        walked = walk(made, design)
        if design.kind == "sgcn" and made.name.endswith("combination"):
            continue        # engines and array take rows of W from different buffers
        for buffer, kinds in FILLED[design.kind].items():
            written = walked.events.get(f"write:{buffer}", 0)
            assert written == sum(walked.read_bytes(kind) for kind in kinds), (made.name, buffer)
            assert walked.events.get(f"read:{buffer}", 0) >= written * (buffer != "list")


@pytest.mark.parametrize("name", DESIGNS)
def test_every_operation_takes_a_lane_for_a_cycle(name):
    workload, design = random_workload(6, 90, 400, (40, 16, 7), own=True), read_design(name)
    for made in passes_of(design, workload):
        walked = walk(made, design)
        units = {"multiply": "mac", "combination": "mac", "aggregation": "simd"}
        for index, stage in enumerate(made.stages):
            cycles = sum(block[index] for block in walked.cycles)
            assert cycles * design.units[units[stage]] >= walked.events[units[stage]] > 0


@pytest.mark.parametrize("name", ["hygcn", "gcnax", "grow", "sgcn"])
def test_a_design_that_lacks_something_is_refused(name):
    workload, design = random_workload(7, 5, 5, (3, 2)), read_design(name)
    for section in ("units", "buffers", "rules"):
        kept = dict(getattr(design, section))
        del kept["sum_bits" if section == "rules" else next(iter(kept))]
        with pytest.raises(ConfigError, match=f"lacks {section}"):
            passes_of(design.__class__(**vars(design) | {section: kept}), workload)
    for path, value in (("rules.id_bytes", 0), ("rules.sum_bits", "32"), ("units.mac", 1.5), ("rules.id_bytes", True)):
        with pytest.raises(ConfigError, match=f"{path} of {name} is .*; expected a whole number"):
            passes_of(design.changed({path: value}), workload)
    with pytest.raises(ConfigError, match="bit_width of"):
        passes_of(design.changed({"design.bit_width": 0}), workload)


@pytest.mark.parametrize("name", ["gcnax", "sgcn"])
def test_other_columns_than_as_many_as_aggregated_ones_are_refused(name):
    workload = random_workload(8, 4, 4, (2, 2))
    product = workload.products[0].__class__("uneven", workload.products[0].rows, 3, 2)
    with pytest.raises(ConfigError, match="uneven adds 1 columns to 2"):
        passes_of(read_design(name), workload.__class__("made", workload.indptr, workload.indices, (product,)))


@pytest.mark.parametrize("name, rule, value, complaint", [
    ("grow", "seed", "wide", "rules.seed of grow is 'wide'; expected a whole number from 0 on"),
    ("sgcn", "sparse_input", "wide", "rules.sparse_input of sgcn is 'wide'; expected true or false"),
])
def test_a_seed_or_a_switch_that_can_not_be_is_refused(name, rule, value, complaint):
    design = read_design(name)
    with pytest.raises(ConfigError, match=complaint):
        check_needs(replace(design, rules={**design.rules, rule: value}), (), (), ())
