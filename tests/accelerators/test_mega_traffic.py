"""What MEGA's passes read of XW from DRAM is what jobs/measurements/dram.py counts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mega_setup import bytes_by_kind, small_design, small_workload, walked

from hpcgnn.accelerators.condense_traffic import Buffer, pruned_entries
from hpcgnn.accelerators.subgraphs import blocks_of, subgraphs_of
from hpcgnn.accelerators.workload import Product, Workload
from hpcgnn.partition.condense import condensed_regions

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements.dram import condensed_traffic, direct_traffic, gather_traffic, source_traffic

SCHEDULES = ("condense", "condense-ids", "metis", "metis-arcs", "gcod", "naive")
COUNTED = {"condense": condensed_traffic, "condense-ids": condensed_traffic, "metis": source_traffic,
           "metis-arcs": direct_traffic, "gcod": gather_traffic, "naive": gather_traffic}


def one_product(combined_dim, num_nodes, num_arcs, seed):
    workload = small_workload(num_nodes=num_nodes, num_arcs=num_arcs, seed=seed)
    product = Product("one", workload.products[0].rows, combined_dim, combined_dim)
    return Workload("one", workload.indptr, workload.indices, (product,))


def halved_buffer(design):
    combination, sparse = (design.buffer_bytes(name) // 2 for name in ("combination", "sparse"))
    return Buffer(combination + sparse, design.rules["line_bytes"], design.rules["policy"],
                  sparse / (combination + sparse))


def expected_rows(workload, design, schedule):
    """The subgraphs, cut as the schedule says; only the sizes of buffers are taken from the design."""
    dim, buffer = workload.products[0].aggregated_dim, halved_buffer(design)
    most = min(design.buffer_bytes("aggregation") // 2 // (2 * dim),
               (buffer.num_bytes - buffer.sparse_bytes) // -(-4 * dim // 8))
    cut = blocks_of if schedule in ("naive", "condense-ids") else subgraphs_of
    rows = cut(workload.indptr, workload.indices, most).rows
    return rows.without(pruned_entries(rows, 0.1)) if schedule == "gcod" else rows


@settings(max_examples=40, deadline=None)
@given(schedule=st.sampled_from(SCHEDULES), fused=st.booleans(), dim=st.sampled_from([5, 16, 32]),
       num_nodes=st.sampled_from([90, 200]), num_arcs=st.sampled_from([150, 900]), seed=st.integers(0, 5),
       line_bytes=st.sampled_from([8, 16, 64]), sparse=st.sampled_from([0.25, 0.5, 8]),
       policy=st.sampled_from(["lru", "fifo"]))
def test_rows_of_xw_are_read_as_counted(schedule, fused, dim, num_nodes, num_arcs, seed, line_bytes, sparse, policy):
    design = small_design(schedule=schedule, fuse_first_subgraph=fused, line_bytes=line_bytes, policy=policy,
                          buffers__sparse=sparse, buffers__combination=0.375)
    workload = one_product(dim, num_nodes, num_arcs, seed)
    rows = expected_rows(workload, design, schedule)
    if fused:   # the first subgraph is aggregated while rows are combined, and reads nothing
        rows = rows.without(np.repeat(rows.cluster_of_rows(), np.diff(rows.indptr)) == 0)
    row_bytes = -(-4 * dim // 8)
    traffic = COUNTED[schedule](rows, row_bytes, halved_buffer(design))
    (_, combining), (_, aggregating) = walked(design, workload)
    read, written = bytes_by_kind(aggregating, "reads"), bytes_by_kind(combining, "writes")
    if schedule.startswith("condense"):
        assert (read["combined rows"], read["condensed rows"]) == (traffic.dense_bytes, traffic.sparse_bytes)
    else:
        assert read["combined rows"] == traffic.dense_bytes + traffic.sparse_bytes and not read["condensed rows"]
    assert written["condensed rows"] == traffic.copy_bytes
    assert bytes_by_kind(combining, "reads")["lists"] == traffic.list_bytes
    skipped = int(rows.start[1]) if fused and schedule.startswith("condense") else 0
    assert written["combined rows"] == (num_nodes - skipped) * row_bytes


def lines_of(rows, row_bytes, line_bytes):
    return [line for row in rows for line in range(row * row_bytes // line_bytes,
                                                   ((row + 1) * row_bytes - 1) // line_bytes + 1)]


def lines_by_loop(rows, schedule, row_bytes, line_bytes, capacity):
    """Lines of XW that each subgraph but the first reads, with the held ones in a plain list, the latest used last."""
    held, cluster, read = [], rows.cluster_of_rows(), []
    for subgraph in range(1, rows.num_clusters):
        sources = rows.indices[rows.indptr[rows.start[subgraph]]:rows.indptr[rows.start[subgraph + 1]]].tolist()
        others = [source for source in sources if cluster[source] != subgraph]
        if schedule != "naive":
            sources = [source for source in sources if cluster[source] == subgraph]
        read.append([])
        for line in lines_of(sources, row_bytes, line_bytes):
            if line in held:
                held.remove(line)
            else:
                read[-1].append(line)
            held = [*held, line][-capacity:]
        if schedule == "metis":
            read[-1] += sorted(set(lines_of(others, row_bytes, line_bytes)))
        if schedule == "metis-arcs":
            read[-1] += lines_of(others, row_bytes, line_bytes)
    return read


@pytest.mark.parametrize("dim", [5, 16, 32])
@pytest.mark.parametrize("line_bytes", [4, 16, 24])
@pytest.mark.parametrize("schedule", ["condense", "metis", "metis-arcs", "naive"])
def test_each_subgraph_reads_the_lines_where_its_rows_lie(schedule, line_bytes, dim):
    design = small_design(schedule=schedule, line_bytes=line_bytes, buffers__combination=0.375, buffers__sparse=0.125)
    workload, row_bytes = one_product(dim, 200, 900, 3), -(-dim // 2)
    rows, buffer = expected_rows(workload, design, schedule), halved_buffer(design)
    capacity = (buffer.dense() if schedule == "condense" else buffer).num_bytes // line_bytes
    (_, combining), (_, (aggregating,)) = walked(design, workload)
    first = min(int(run.writes.address[run.writes.kind == 4].min()) for run in combining)
    first -= int(rows.start[1]) * row_bytes if schedule == "condense" else 0
    read = [[] for _ in aggregating.cycles]
    for block, address, num_bytes, kind in zip(*aggregating.reads, strict=True):
        if kind == 4:
            assert (address - first) % line_bytes == num_bytes % line_bytes == 0
            read[block] += range((address - first) // line_bytes, (address - first + num_bytes) // line_bytes)
    expected = lines_by_loop(rows, schedule, row_bytes, line_bytes, capacity)
    if schedule == "condense":
        assert read == [sorted(lines) for lines in read]
    if schedule == "naive":
        assert read == expected
    else:
        assert [sorted(lines) for lines in read] == [sorted(lines) for lines in expected]


@pytest.mark.parametrize("schedule", ["condense", "condense-ids"])
def test_regions_are_written_where_they_are_read_later(schedule):
    design = small_design(schedule=schedule, buffers__combination=0.375, buffers__sparse=8)
    (_, combining), (_, aggregating) = walked(design, one_product(16, 200, 900, 1))
    spans = [sorted({(int(address), int(address + size)) for run in blocks
                     for address, size, kind in zip(*getattr(run, side)[1:], strict=True) if kind == 5})
             for blocks, side in ((combining, "writes"), (aggregating, "reads"))]
    touched = [{line for first, last in kind for line in range(first // 128, -(-last // 128))} for kind in spans]
    assert touched[0] == touched[1] and len(touched[0]) > 5


def test_a_copy_is_written_after_its_row_was_combined():
    design = small_design(buffers__combination=0.375, buffers__sparse=0.125, rows_a_block=1, line_bytes=8)
    workload = one_product(16, 200, 900, 2)
    rows = expected_rows(workload, design, "condense")
    regions = condensed_regions(rows.without(np.repeat(rows.cluster_of_rows(), np.diff(rows.indptr)) == 0))
    combining = walked(design, workload)[0][1]
    block = np.concatenate([run.writes.block[run.writes.kind == 5] for run in combining])
    assert len(combining) == 1 and len(block) == regions.num_copies
    assert block.tolist() == sorted(regions.copied_row.tolist())


def test_xw_that_the_combination_buffer_holds_never_leaves():
    workload = one_product(4, 300, 900, 0)
    design = small_design(buffers__aggregation=1, buffers__combination=2)
    (_, combining), (_, aggregating) = walked(design, workload)
    assert aggregating and not bytes_by_kind(combining, "writes")["combined rows"]
    assert set(bytes_by_kind(aggregating, "reads")) == {"edges"}
    small = small_design(buffers__aggregation=1, buffers__combination=1)
    assert bytes_by_kind(walked(small, workload)[0][1], "writes")["combined rows"]


def test_a_graph_of_one_subgraph_is_aggregated_while_rows_are_combined():
    only, = walked(small_design(buffers__aggregation=64, buffers__combination=64), small_workload("narrow"))
    assert only[0].name == "product 0 combination"
    assert set(bytes_by_kind(only[1], "reads")) == {"weights", "input rows", "positions", "edges"}
    assert set(bytes_by_kind(only[1], "writes")) == {"output rows"}
