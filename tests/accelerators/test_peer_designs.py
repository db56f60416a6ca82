"""The configurations of MEGA's peers: they can be read, run, and have what the papers' tables say."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from accelerator_workloads import random_workload, walk

from hpcgnn.accelerators.design import read_design
from hpcgnn.accelerators.row_requests import result_dim

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
    assert len({address for _, address, _ in results}) == len(results)
    assert walked[-1].written_bytes("output rows") == workload.num_nodes * result_dim(last) * size
    # Without arcs (AX)W needs no row.
    read = [product for product in workload.products if workload.num_arcs or not product.aggregated_dim]
    assert total["input rows"] >= sum(int(product.rows.nonzeros.sum()) for product in read) * size
    operations = sum(w.events.get("mac", 0) + w.events.get("simd", 0) for w in walked)
    assert operations >= sum(int(product.rows.nonzeros.sum()) * product.combined_dim for product in workload.products)


@pytest.mark.parametrize("name", DESIGNS)
def test_passes_can_be_walked_again(name):
    workload, design = random_workload(2, 50, 200, (12, 6, 3)), read_design(name)
    for made in passes_of(design, workload):
        assert walk(made, design) == walk(made, design)


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
    from hpcgnn.accelerators import row_requests

    monkeypatch.setattr(row_requests.runs_of, "__defaults__", (1,))
    assert np.all([walk(made, design) == one for made, one in zip(passes_of(design, workload), whole, strict=True)])
