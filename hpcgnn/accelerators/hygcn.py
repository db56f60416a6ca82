"""HyGCN, Yan et al., HPCA 2020: (AX)W by intervals and windows, without the sparsity of features; or A(XW), as MEGA's
HyGCN-C.

How long a request takes is not known here.

Aggregation goes through intervals of rows. Windows of sources, which slide and shrink, are loaded for each interval
(hygcn_windows); SIMD cores add them to sums in the Aggregation Buffer, and a systolic array multiplies an interval's
sums with W while the next interval is aggregated. assumed, where the paper is silent: a block is an interval, or a
slice of its columns; W is kept where the Weight Buffer holds all of it, else it is read for each interval; arcs lie
interval after interval in CSC, with an id for each arc and an offset for each row; sums are `sum_bits` wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.hybrid_engines import Array, array_of, checked_order, simd_cycles
from hpcgnn.accelerators.hygcn_layer import Layer, edge_requests, own_requests, source_requests, weight_requests
from hpcgnn.accelerators.hygcn_plan import Plan, plan_of
from hpcgnn.accelerators.needs import check_needs
from hpcgnn.accelerators.row_requests import (
    block_starts,
    in_order,
    own_dim,
    requests_of,
    result_dim,
    runs_of,
    size_in_bytes,
)
from hpcgnn.accelerators.schedule import AddressSpace, Blocks, Pass, Requests
from hpcgnn.accelerators.workload import Workload


def passes(design: Design, workload: Workload) -> list[Pass]:
    """Return HyGCN's passes: one for each product, or two with A(XW).

    Raises
    ------
    ConfigError      the design lacks something, its units don't fit together, or its order is unknown
    """
    check_needs(design, ("mac", "simd"), ("input", "edge", "weight", "output", "aggregation"),
                ("simd_width", "systolic_rows", "sum_bits", "id_bytes"))
    order, array = checked_order(design), array_of(design)
    space, made = AddressSpace(), []
    edges_at = space.reserve(design.rules["id_bytes"] * (workload.num_nodes + workload.num_arcs))
    input_at = space.reserve(_matrix_bytes(design, workload, workload.products[0].rows.dim))
    for index, product in enumerate(workload.products):
        dims = [result_dim(product)] + [after.rows.dim for after in workload.products[index + 1:index + 2]]
        weights_at = space.reserve(size_in_bytes(product.rows.dim * product.combined_dim, design.bit_width))
        result_at = space.reserve(_matrix_bytes(design, workload, max(dims)))
        layer = Layer(design, workload, product, input_at, weights_at, edges_at, result_at)
        if product.aggregated_dim and order == "combination-first":
            made += _combination_first(layer, array, space)
        elif product.aggregated_dim:
            plan = plan_of(design, product.rows.dim, product.combined_dim, array.rows)
            made.append(Pass(f"{product.name} aggregation, combination", ("aggregation", "combination"),
                             partial(_interval_blocks, layer, plan, array), buffered_until=0))
        else:
            made.append(Pass(f"{product.name} combination", ("combination",),
                             partial(_combination_blocks, layer, array, ((result_at, product.combined_dim),),
                                     "output rows")))
        input_at = result_at
    return made


def _matrix_bytes(design: Design, workload: Workload, dim: int) -> int:
    return workload.num_nodes * size_in_bytes(dim, design.bit_width)


def _combination_first(layer: Layer, array: Array, space: AddressSpace) -> list[Pass]:
    design, product = layer.design, layer.product
    own = own_dim(product)
    combined_at = space.reserve(_matrix_bytes(design, layer.workload, product.aggregated_dim))
    own_at = space.reserve(_matrix_bytes(design, layer.workload, own))
    parts = ((combined_at, product.aggregated_dim), (own_at, own))
    layer = Layer(design, layer.workload, product, layer.input_at, layer.weights_at, layer.edges_at, layer.result_at,
                  combined_at, own_at)
    plan = plan_of(design, product.aggregated_dim, product.aggregated_dim, 1)
    return [Pass(f"{product.name} combination", ("combination",),
                 partial(_combination_blocks, layer, array, parts, "combined rows")),
            Pass(f"{product.name} aggregation", ("aggregation",), partial(_interval_blocks, layer, plan, None))]


def _combination_blocks(layer: Layer, array: Array, parts: tuple[tuple[int, int], ...], kind: str) -> Iterator[Blocks]:
    """Yield blocks of XW: rows stream through the Input Buffer, results wait in the Output Buffer.

    assumed: a block has as many rows as half the Output Buffer holds results of.
    """
    design, product = layer.design, layer.product
    results = design.buffer_bytes("output") // 2 * 8 // design.rules["sum_bits"]
    start = block_starts(layer.workload.num_nodes, max(1, results // product.combined_dim))
    row_bytes = layer.num_bytes(product.rows.dim)
    for first, last in runs_of(np.arange(len(start))):
        rows, block = np.diff(start[first:last + 1]), np.arange(last - first)
        weights = weight_requests(layer, first + block, np.array([0, product.rows.dim]), block)
        inputs = requests_of("input rows", block, layer.input_at + start[first:last] * row_bytes, rows * row_bytes)
        writes = [requests_of(kind, block, at + start[first:last] * layer.num_bytes(dim), rows * layer.num_bytes(dim))
                  for at, dim in parts]
        events = _multiplied(layer, array, rows, product.rows.dim, weights)
        events["write:input"] = events["read:input"] = int((rows * row_bytes).sum())
        cycles = array.cycles(rows, product.rows.dim, product.combined_dim)
        yield Blocks(cycles[:, None], in_order(weights, inputs), in_order(*writes), events)


def _interval_blocks(layer: Layer, plan: Plan, array: Array | None) -> Iterator[Blocks]:
    """Yield the blocks of intervals, each slice by slice: aggregated, and multiplied where there is an array."""
    indptr = layer.workload.indptr
    start, num_slices = block_starts(layer.workload.num_nodes, plan.rows_a_block), len(plan.slice_start) - 1
    work = (indptr[start] + np.arange(len(start))) * num_slices
    for first, last in runs_of(work):
        yield _blocks_of_intervals(layer, plan, array, start[first:last + 1])


def _blocks_of_intervals(layer: Layer, plan: Plan, array: Array | None, start: np.ndarray) -> Blocks:
    design, product = layer.design, layer.product
    num_slices, rows = len(plan.slice_start) - 1, np.repeat(np.diff(start), len(plan.slice_start) - 1)
    arcs = np.repeat(np.diff(layer.workload.indptr[start]), num_slices)
    block, interval = np.arange(len(rows)), np.repeat(np.arange(len(start) - 1), num_slices)
    depth = np.tile(np.diff(plan.slice_start), len(start) - 1)
    is_last = block % num_slices == num_slices - 1
    own = own_dim(product) if array is None else 0
    reads = [edge_requests(layer, start, interval, block, rows, arcs),
             source_requests(layer, plan, array is None, start), own_requests(layer, plan, array is None, start)]
    cycles = [simd_cycles(design, arcs, depth) + is_last * simd_cycles(design, rows, own)]
    events = _aggregated(layer, int((arcs * depth).sum()) + own * int((rows * is_last).sum()), reads)
    if array is not None:
        weights = weight_requests(layer, start[0] // plan.rows_a_block + interval, plan.slice_start, block)
        reads.append(weights)
        cycles.append(array.cycles(rows, depth, product.combined_dim))
        multiplied = _multiplied(layer, array, rows, depth, weights)
        multiplied["read:aggregation"] = int((rows * depth).sum()) * design.rules["sum_bits"] // 8
        events = {name: events.get(name, 0) + multiplied.get(name, 0) for name in [*events, *multiplied]}
    row_bytes = layer.num_bytes(result_dim(product))
    writes = requests_of("output rows", block[is_last], layer.result_at + start[:-1] * row_bytes,
                         rows[is_last] * row_bytes)
    return Blocks(np.stack(cycles, axis=1), in_order(*reads), writes, events)


def _aggregated(layer: Layer, num_sums: int, reads: list[Requests]) -> dict[str, int]:
    """Return the events of so many additions, each with a value from the Input Buffer."""
    edges, rows = int(reads[0].num_bytes.sum()), sum(int(read.num_bytes.sum()) for read in reads[1:])
    sum_bytes = num_sums * layer.design.rules["sum_bits"] // 8
    return {"simd": num_sums, "write:edge": edges, "read:edge": edges, "write:input": rows,
            "read:input": int(layer.num_bytes(num_sums)), "read:aggregation": sum_bytes, "write:aggregation": sum_bytes}


def _multiplied(layer: Layer, array: Array, rows: np.ndarray, depth: np.ndarray | int, weights: Requests
                ) -> dict[str, int]:
    """Return the events of (rows, depth) times W in each block: W is read from its buffer once for each group of rows
    that the array takes, and a result is read and written once for each slice.
    """
    columns, sum_bits = layer.product.combined_dim, layer.design.rules["sum_bits"]
    result_bytes = int(rows.sum()) * columns * sum_bits // 8
    return {"mac": int((rows * depth).sum()) * columns, "write:weight": int(weights.num_bytes.sum()),
            "read:weight": int(layer.num_bytes((-(-rows // array.rows) * depth).sum() * columns)),
            "write:output": result_bytes, "read:output": result_bytes}
