"""HyGCN (Yan et al., HPCA 2020): computes (AX)W interval by interval, or A(XW); zeros in features are not skipped.

Aggregation goes through intervals of rows. For each interval, windows slide and shrink over the source rows that its
edges need; the rows inside the windows are loaded. SIMD cores add them to sums in the Aggregation Buffer; a systolic
array multiplies the sums of an interval with W while the next interval is aggregated. A(XW) is MEGA's HyGCN-C.

Assumed, where the paper is silent: a block is an interval, or a slice of its columns. W is kept if the Weight Buffer
holds all of it, else W is read for each interval. Edges lie interval after interval in CSC, with an id for each edge
and an offset for each row. Sums are `sum_bits` wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.design import Design, check_needs
from hpcgnn.accelerators.hybrid_engines import Array, array_of, checked_order, simd_cycles
from hpcgnn.accelerators.rows import (
    Count,
    block_starts,
    distinct,
    in_order,
    own_dim,
    requests_of,
    result_dim,
    runs_of,
    size_in_bytes,
)
from hpcgnn.accelerators.schedule import NO_REQUESTS, AddressSpace, Blocks, Pass, Requests
from hpcgnn.accelerators.workload import Product, Workload

COLUMNS_A_STEP = 8      # slices begin at whole bytes, whatever the width of a value


def passes(design: Design, workload: Workload) -> list[Pass]:
    """HyGCN's passes: one per product, or two with A(XW).

    Raises ConfigError if the design lacks something, its units don't fit together, or its order is unknown.
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


class Plan(NamedTuple):
    rows_a_block: int
    slice_start: np.ndarray    # (num_slices + 1,) int64, first column of each slice, then the number of all columns
    window_rows: int           # rows of a slice in half of the input buffer, at least one


def plan_of(design: Design, dim: int, result_columns: int, fewest_rows: int) -> Plan:
    """Rows of a block, and how many of their columns are aggregated at once.

    Assumed: the sums of an interval's rows fit half the Aggregation Buffer, and their results half the Output Buffer.
    If fewer than `fewest_rows` rows fit (rows of the systolic array would idle), columns are taken in slices, so that
    half the Output Buffer is full; HyGCN's paper has no rows that long.
    """
    num_sums = design.buffer_bytes("aggregation") // 2 * 8 // design.rules["sum_bits"]
    results = design.buffer_bytes("output") // 2 * 8 // design.rules["sum_bits"]
    rows, slice_dim = max(1, results // result_columns), dim
    if num_sums // dim >= min(fewest_rows, rows):
        rows = min(rows, num_sums // dim)
    else:
        slice_dim = max(1, num_sums // rows // COLUMNS_A_STEP) * COLUMNS_A_STEP
    start = np.append(np.arange(0, dim, slice_dim, dtype=np.int64), dim)
    row_bytes = size_in_bytes(min(slice_dim, dim), design.bit_width)
    return Plan(rows, start, max(1, design.buffer_bytes("input") // 2 // row_bytes))


class Windows(NamedTuple):
    # Runs of rows that are loaded for intervals.
    interval: np.ndarray     # (num_windows,) int64, ascending
    first_row: np.ndarray    # (num_windows,) int64, ascending within an interval
    num_rows: np.ndarray     # (num_windows,) int64, from 1 to the height of a window


def windows_of(interval: np.ndarray, source: np.ndarray, num_nodes: int, height: int) -> Windows:
    """The windows that cover the sources of each interval's edges, (num_edges,) int64 both, in any order.

    A window slides down to the first uncovered source, reaches `height` rows (half of the input buffer), and shrinks
    from below to the last source within it. Rows between the two are loaded, needed or not (HyGCN, Yan et al., HPCA
    2020, data-aware sparsity elimination). Example: with sources 2, 3, 9 and a height of 4, the windows are rows 2 to 3
    and row 9.
    """
    stride = num_nodes + height
    key = distinct(interval.astype(np.int64) * stride + source)
    if not len(key):
        return Windows(*(np.empty(0, np.int64) for _ in Windows._fields))
    is_first = _first_of_windows(key, stride, height)
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(key)) - 1
    return Windows(key[first] // stride, key[first] % stride, key[last] - key[first] + 1)


def _first_of_windows(key: np.ndarray, stride: int, height: int) -> np.ndarray:
    if height == 1:
        return np.ones(len(key), bool)
    is_first = np.zeros(len(key), bool)
    at = np.flatnonzero(np.diff(key // stride, prepend=-1))
    end = np.append(at[1:], len(key))
    while len(at):
        is_first[at] = True
        at = np.searchsorted(key, key[at] + height)
        at, end = at[at < end], end[at < end]
    return is_first


@dataclass(frozen=True)
class Layer:
    design: Design
    workload: Workload
    product: Product
    input_at: int
    weights_at: int
    edges_at: int
    result_at: int
    combined_at: int = 0
    own_at: int = 0

    def num_bytes(self, num_values: Count) -> Count:
        return size_in_bytes(num_values, self.design.bit_width)

    @property
    def is_resident(self) -> bool:
        size = self.num_bytes(self.product.rows.dim * self.product.combined_dim)
        return size <= self.design.buffer_bytes("weight")


def edge_requests(layer: Layer, start: np.ndarray, interval: np.ndarray, block: np.ndarray, rows: np.ndarray,
                  arcs: np.ndarray) -> Requests:
    begin = start[:-1] + layer.workload.indptr[start[:-1]]
    id_bytes = layer.design.rules["id_bytes"]
    return requests_of("edges", block, layer.edges_at + id_bytes * begin[interval], id_bytes * (rows + arcs))


def source_requests(layer: Layer, plan: Plan, is_combined: bool, start: np.ndarray) -> Requests:
    indptr = layer.workload.indptr
    degree = indptr[start[0] + 1:start[-1] + 1] - indptr[start[0]:start[-1]]
    interval = np.repeat(np.arange(start[-1] - start[0]) // plan.rows_a_block, degree)
    windows = windows_of(interval, layer.workload.indices[indptr[start[0]]:indptr[start[-1]]],
                         layer.workload.num_nodes, plan.window_rows)
    at, kind = (layer.combined_at, "combined rows") if is_combined else (layer.input_at, "input rows")
    dim = layer.product.aggregated_dim if is_combined else layer.product.rows.dim
    return _slices_of(layer, plan, windows, at, dim, kind)


def own_requests(layer: Layer, plan: Plan, is_combined: bool, start: np.ndarray) -> Requests:
    if not own_dim(layer.product):
        return NO_REQUESTS
    rows, num_slices = np.diff(start), len(plan.slice_start) - 1
    if not is_combined:
        return _slices_of(layer, plan, Windows(np.arange(len(rows)), start[:-1], rows), layer.input_at,
                          layer.product.rows.dim, "input rows")
    row_bytes = layer.num_bytes(own_dim(layer.product))
    return requests_of("combined rows", np.arange(1, len(rows) + 1) * num_slices - 1,
                       layer.own_at + start[:-1] * row_bytes, rows * row_bytes)


def _slices_of(layer: Layer, plan: Plan, windows: Windows, at: int, dim: int, kind: str) -> Requests:
    num_slices, row_bytes = len(plan.slice_start) - 1, layer.num_bytes(dim)
    if num_slices == 1:
        return requests_of(kind, windows.interval, at + windows.first_row * row_bytes, windows.num_rows * row_bytes)
    before = np.cumsum(windows.num_rows) - windows.num_rows
    row = np.arange(windows.num_rows.sum()) + np.repeat(windows.first_row - before, windows.num_rows)
    interval = np.repeat(windows.interval, windows.num_rows)
    slice_at = layer.num_bytes(plan.slice_start)
    block = (interval[:, None] * num_slices + np.arange(num_slices)).ravel()
    order = np.argsort(block, kind="stable")
    address = (at + row[:, None] * row_bytes + slice_at[:-1]).ravel()
    return requests_of(kind, block[order], address[order], np.tile(np.diff(slice_at), len(row))[order])


def weight_requests(layer: Layer, interval: np.ndarray, slice_start: np.ndarray, block: np.ndarray) -> Requests:
    """Reads of the rows of W for each block's slice; if W stays in its buffer, for the first interval only."""
    slice_at = layer.num_bytes(slice_start * layer.product.combined_dim)
    index = np.arange(len(block)) % (len(slice_start) - 1)
    needed = (interval == 0) if layer.is_resident else np.ones(len(block), bool)
    return requests_of("weights", block, layer.weights_at + slice_at[index], np.diff(slice_at)[index] * needed)


def _matrix_bytes(design: Design, workload: Workload, dim: int) -> int:
    return workload.num_nodes * size_in_bytes(dim, design.bit_width)


def _combination_first(layer: Layer, array: Array, space: AddressSpace) -> list[Pass]:
    design, product = layer.design, layer.product
    own = own_dim(product)
    combined_at = space.reserve(_matrix_bytes(design, layer.workload, product.aggregated_dim))
    own_at = space.reserve(_matrix_bytes(design, layer.workload, own))
    parts = ((combined_at, product.aggregated_dim), (own_at, own))
    layer = replace(layer, combined_at=combined_at, own_at=own_at)
    plan = plan_of(design, product.aggregated_dim, product.aggregated_dim, 1)
    return [Pass(f"{product.name} combination", ("combination",),
                 partial(_combination_blocks, layer, array, parts, "combined rows")),
            Pass(f"{product.name} aggregation", ("aggregation",), partial(_interval_blocks, layer, plan, None))]


def _combination_blocks(layer: Layer, array: Array, parts: tuple[tuple[int, int], ...], kind: str) -> Iterator[Blocks]:
    # Rows stream through the Input Buffer, results wait in the Output Buffer. Assumed: the results of a block fill half
    # the Output Buffer.
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
    edges, rows = int(reads[0].num_bytes.sum()), sum(int(read.num_bytes.sum()) for read in reads[1:])
    sum_bytes = num_sums * layer.design.rules["sum_bits"] // 8
    return {"simd": num_sums, "write:edge": edges, "read:edge": edges, "write:input": rows,
            "read:input": int(layer.num_bytes(num_sums)), "read:aggregation": sum_bytes, "write:aggregation": sum_bytes}


def _multiplied(layer: Layer, array: Array, rows: np.ndarray, depth: np.ndarray | int, weights: Requests
                ) -> dict[str, int]:
    # W is read from its buffer once per group of rows in the array; a result is read and written once per slice.
    columns, sum_bits = layer.product.combined_dim, layer.design.rules["sum_bits"]
    result_bytes = int(rows.sum()) * columns * sum_bits // 8
    return {"mac": int((rows * depth).sum()) * columns, "write:weight": int(weights.num_bytes.sum()),
            "read:weight": int(layer.num_bytes((-(-rows // array.rows) * depth).sum() * columns)),
            "write:output": result_bytes, "read:output": result_bytes}
