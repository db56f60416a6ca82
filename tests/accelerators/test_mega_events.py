"""Operations, bytes of buffers and cycles of stages in MEGA's passes are those of the products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mega_setup import (
    MODELS,
    all_blocks,
    bytes_by_kind,
    random_rows,
    small_design,
    small_workload,
    total_events,
    walked,
)
from reference_mega import condense

from hpcgnn.accelerators.mega.layout import SCHEDULES, Rules, stored_rows
from hpcgnn.accelerators.subgraphs import subgraphs_of
from hpcgnn.accelerators.workload import Product


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", MODELS)
def test_operations_are_those_of_the_products(schedule, model):
    workload = small_workload(model)
    num_nodes, products = workload.num_nodes, workload.products
    num_arcs = workload.num_arcs
    if schedule == "gcod" and model != "narrow":        # which is one subgraph
        num_arcs -= round(0.1 * num_arcs)
    events = total_events(all_blocks(small_design(schedule=schedule), workload))
    nonzeros = [product.rows.row_nonzeros() for product in products]
    assert events["bse"] == sum(
        int((count * np.maximum(product.rows.bit_width, 2)).sum()) * product.combined_dim
        for count, product in zip(nonzeros, products, strict=True))
    assert events["decoder"] == sum(int(count.sum()) * -(-product.combined_dim // 32)
                                    for count, product in zip(nonzeros, products, strict=True))
    assert events["crossbar"] == sum(int(count.sum()) * -(-product.combined_dim // 16)
                                     for count, product in zip(nonzeros, products, strict=True))
    own = sum(num_nodes * product.aggregated_dim for product in products
              if 0 < product.aggregated_dim < product.combined_dim)
    macs = sum(num_arcs * product.aggregated_dim for product in products) + own
    assert events["aggregation_unit"] == macs
    assert events["encoder"] == sum(num_nodes * (product.aggregated_dim or product.combined_dim)
                                    for product in products[:-1])
    sums = sum(num_nodes * product.aggregated_dim for product in products)
    assert events["write:aggregation"] == 2 * macs and events["read:aggregation"] == 2 * (macs + sums)


def test_dram_fills_buffers_and_is_filled_from_them():
    design, workload = small_design(), small_workload("sage")
    blocks = all_blocks(design, workload)
    events, read = total_events(blocks), bytes_by_kind(blocks, "reads")
    assert events["write:weight"] == read["weights"]
    assert events["write:edge"] == read["edges"] + read["lists"]
    rows_in_order = workload.num_nodes * (8 + 8) + workload.num_nodes * (2 + 2)     # both halves, 4 bits a value
    assert events["write:combination"] == read["combined rows"] + rows_in_order
    assert events["write:sparse"] - read["condensed rows"] == 2 * read["lists"]     # 8 bytes a copy, 4 an ID


@pytest.mark.parametrize("schedule", ["condense", "metis"])
def test_the_row_of_a_source_is_read_once_a_subgraph(schedule):
    workload = small_workload("sage")
    events = total_events(walked(small_design(schedule=schedule, buffers__combination=1), workload)[1][1])
    rows = subgraphs_of(workload.indptr, workload.indices, 32).rows
    cluster = rows.cluster_of_rows()
    pairs = np.unique(np.stack([np.repeat(cluster, np.diff(rows.indptr)), rows.indices]), axis=1)
    pairs = pairs[:, pairs[0] > 0]
    num_own = (cluster[pairs[1]] == pairs[0]).sum()
    num_others = pairs.shape[1] - num_own
    own_halves = (workload.num_nodes - rows.start[1]) * 8
    assert events["read:sparse"] == (num_others * 8 if schedule == "condense" else 0)
    assert events["read:combination"] + events["read:sparse"] == pairs.shape[1] * 8 + own_halves
    assert events["condense_unit"] == (pairs.shape[1] if schedule == "condense" else 0)


@pytest.mark.parametrize(("halves", "leaves"), [(1.2, False), (0.9, True)])
def test_x_leaves_where_half_of_the_input_buffer_does_not_hold_it(halves, leaves):
    workload = small_workload("wide")
    order = subgraphs_of(workload.indptr, workload.indices, 12).order
    wide, rows = workload.products[0], random_rows(workload.num_nodes, 40, seed=7)
    workload = replace(workload, products=(wide, Product("next", rows, 3, 3)))
    placed = replace(rows, nonzeros=rows.nonzeros[order], bit_width=rows.bit_width[order])
    num_bytes = stored_rows(placed, Rules(small_design())).num_bytes
    blocks = [run for one, runs in walked(small_design(buffers__input=2 * halves * num_bytes / 1024), workload)[:2]
              for run in runs]
    assert bytes_by_kind(blocks, "writes")["output rows"] == num_bytes * leaves
    events, first = total_events(blocks), bytes_by_kind(blocks, "reads")
    first = first["input rows"] + first["positions"]
    assert events["write:input"] == first + num_bytes
    assert events["read:input"] == 3 * first + num_bytes * leaves      # 80 columns pass 32 C-PEs three times


def aggregation_by_loop(workload, design, first_only):
    """Cycles of adding each source to its arcs, 16 columns on 256 units, and of rows' own halves: by row where it is
    for the first subgraph, else by subgraph.
    """
    rows = subgraphs_of(workload.indptr, workload.indices, 32).rows
    cluster = rows.cluster_of_rows()
    arcs = {}
    for row in range(rows.num_rows):
        for source in rows.indices[rows.indptr[row]:rows.indptr[row + 1]].tolist():
            key = (cluster[row], source)
            arcs[key] = arcs.get(key, 0) + 1
    cycles = np.zeros(rows.num_rows if first_only else rows.num_clusters, int)
    for (subgraph, source), num_arcs in arcs.items():
        if (subgraph == 0) == first_only:
            cycles[source if first_only else subgraph] += -(-num_arcs // (design.units["aggregation_unit"] // 16))
    for row in range(rows.num_rows):
        if (cluster[row] == 0) == first_only:
            cycles[row if first_only else cluster[row]] += 1
    return cycles


@pytest.mark.parametrize("units", [16, 32, 256])
def test_stages_are_busy_as_long_as_their_engines(units):
    design, workload = small_design(schedule="metis", units__aggregation_unit=units), small_workload("sage", hub=True)
    (_, combining), (_, aggregating) = walked(design, workload)[:2]
    first, second = (np.concatenate([run.cycles for run in blocks]) for blocks in (combining, aggregating))
    rows = workload.products[0].rows
    groups = -(-rows.nonzeros.max(axis=1) // 8) * np.maximum(rows.bit_width, 2)
    assert first[:, 0].sum() == np.maximum(groups, 1).sum() + 3 * len(first)
    at_once = aggregation_by_loop(workload, design, True)
    assert first[:, 1].sum() == at_once.sum() + 2 * (first[:, 1] > 0).sum() and (first[:, 1] > 0).sum() > 5
    assert second[:, 0].tolist() == (aggregation_by_loop(workload, design, False)[1:] + 2).tolist()
    assert first[:, 2].sum() == first[-1, 2] and first[-1, 2] + second[:, 1].sum() == workload.num_nodes


@pytest.mark.parametrize(("num_fifos", "port_bytes"), [(16, 64), (2, 64), (1, 1)])
def test_the_condense_unit_works_beside_the_aggregation_engine(num_fifos, port_bytes):
    workload, changes = small_workload(), {"buffers__combination": 0.5, "rows_a_block": 1}
    with_copies = small_design(units__condense_unit=num_fifos, sparse_port_bytes=port_bytes, **changes)
    both, alone = (np.concatenate([run.cycles[:, 1] for run in walked(design, workload)[0][1]])
                   for design in (with_copies, small_design(schedule="metis", **changes)))
    rows = subgraphs_of(workload.indptr, workload.indices, 32).rows
    cluster = np.repeat(rows.cluster_of_rows(), np.diff(rows.indptr))
    lists = [np.setdiff1d(rows.indices[cluster == c], np.arange(rows.start[c], rows.start[c + 1])).tolist()
             for c in range(1, rows.num_clusters)]
    cycles, _, _ = condense(lists, rows.num_rows, num_fifos, 8, port_bytes, 8, 128)
    assert both.tolist() == np.maximum(alone, cycles).tolist() and (both > alone).any()


@pytest.mark.parametrize("storage", ["package", "bitmap"])
def test_one_width_for_all_rows_takes_the_cycles_of_the_widest(storage):
    workload = small_workload()
    mixed, wide = (walked(small_design(storage=storage, **change), workload)[0][1]
                   for change in ({}, {"design__bit_width": 8}))
    cycles = [sum(run.cycles[:, 0].sum() for run in blocks) for blocks in (mixed, wide)]
    assert cycles[0] < cycles[1] if storage == "package" else cycles[0] == cycles[1]
