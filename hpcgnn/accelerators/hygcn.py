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
from hpcgnn.accelerators.hybrid_engines import (
    Array,
    array_of,
    checked_order,
    combination_blocks,
    simd_cycles,
    weight_requests,
)
from hpcgnn.accelerators.schedule import (
    AddressSpace,
    Blocks,
    Pass,
    Requests,
    block_starts,
    by_address,
    distinct,
    in_order,
    requests_of,
    runs_of,
)
from hpcgnn.accelerators.workload import Count, Product, Workload, size_in_bytes

COLUMNS_A_STEP = 8      # slices begin at whole bytes, whatever the width of a value


def passes(design: Design, workload: Workload) -> list[Pass]:
    """HyGCN's passes: one per product, or two with A(XW).

    Raises ConfigError if the design lacks something, its units don't fit together, or its order is unknown.
    """
    check_needs(design, ("mac", "simd"), ("input", "edge", "weight", "output", "aggregation"),
                ("simd_width", "systolic_rows", "sum_bits", "id_bytes"))
    order, array = checked_order(design), array_of(design)
    space, made, num_nodes = AddressSpace(), [], workload.num_nodes
    edges_at = space.reserve(design.rules["id_bytes"] * (num_nodes + workload.num_arcs))
    input_at = space.reserve(num_nodes * size_in_bytes(workload.products[0].rows.dim, design.bit_width))
    for index, product in enumerate(workload.products):
        dims = [product.result_dim] + [after.rows.dim for after in workload.products[index + 1:index + 2]]
        weights_at = space.reserve(size_in_bytes(product.rows.dim * product.combined_dim, design.bit_width))
        result_at = space.reserve(num_nodes * size_in_bytes(max(dims), design.bit_width))
        layer = Layer(design, workload, product, input_at, weights_at, edges_at, result_at)
        if product.aggregated_dim and order == "combination-first":
            made += _combination_first(layer, array, space)
        elif product.aggregated_dim:
            plan = plan_of(design, product.rows.dim, product.combined_dim, array.rows)
            made.append(Pass(f"{product.name} aggregation, combination", ("aggregation", "combination"),
                             partial(_interval_blocks, layer, plan, array), buffered_until=0))
        else:
            made.append(_combination(layer, array, "output rows", ((result_at, product.combined_dim),)))
        input_at = result_at
    return made


class Plan(NamedTuple):
    rows_a_block: int
    slice_start: np.ndarray    # (num_slices + 1,) int64, first column of each slice, then the number of all columns
    window_rows: int           # rows of a slice in half of the input buffer, at least one

    @property
    def num_slices(self) -> int:
        return len(self.slice_start) - 1


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
    row_bytes = size_in_bytes(min(slice_dim, dim), design.bit_width)
    return Plan(rows, block_starts(dim, slice_dim), max(1, design.buffer_bytes("input") // 2 // row_bytes))


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
    is_first = np.full(len(key), height == 1)
    if height > 1:
        # All intervals take their next window at the same time.
        at = np.flatnonzero(np.diff(key // stride, prepend=-1))
        end = np.append(at[1:], len(key))
        while len(at):
            is_first[at] = True
            at = np.searchsorted(key, key[at] + height)
            at, end = at[at < end], end[at < end]
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(key))[:len(first)] - 1
    return Windows(key[first] // stride, key[first] % stride, key[last] - key[first] + 1)


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

    def row_requests(self, kind: str, at: int, dim: int, start: np.ndarray, block: np.ndarray | None = None
                     ) -> Requests:
        """One request per block, for rows start[b] to start[b + 1] - 1 of a matrix of `dim` columns at address `at`."""
        row_bytes, block = self.num_bytes(dim), np.arange(len(start) - 1) if block is None else block
        return requests_of(kind, block, at + start[:-1] * row_bytes, np.diff(start) * row_bytes)


def _combination(layer: Layer, array: Array, kind: str, parts: tuple[tuple[int, int], ...]) -> Pass:
    # `parts` are address and columns of each part of the result.
    inputs = partial(layer.row_requests, "input rows", layer.input_at, layer.product.rows.dim)
    return Pass(f"{layer.product.name} combination", ("combination",), partial(
        combination_blocks, layer.design, array, layer.product, layer.weights_at, inputs,
        lambda start: by_address(*(layer.row_requests(kind, at, dim, start) for at, dim in parts)), "input"))


def _combination_first(layer: Layer, array: Array, space: AddressSpace) -> list[Pass]:
    product, num_nodes = layer.product, layer.workload.num_nodes
    dims = product.aggregated_dim, product.own_dim
    combined_at, own_at = (space.reserve(num_nodes * layer.num_bytes(dim)) for dim in dims)
    layer = replace(layer, combined_at=combined_at, own_at=own_at)
    plan = plan_of(layer.design, product.aggregated_dim, product.aggregated_dim, 1)
    return [_combination(layer, array, "combined rows", tuple(zip((combined_at, own_at), dims, strict=True))),
            Pass(f"{product.name} aggregation", ("aggregation",), partial(_interval_blocks, layer, plan, None))]


def _interval_blocks(layer: Layer, plan: Plan, array: Array | None) -> Iterator[Blocks]:
    # Without an array, XW is aggregated and was multiplied before.
    start = block_starts(layer.workload.num_nodes, plan.rows_a_block)
    for first, last in runs_of((layer.workload.indptr[start] + np.arange(len(start))) * plan.num_slices):
        yield _blocks_of_intervals(layer, plan, array, start[first:last + 1])


def _blocks_of_intervals(layer: Layer, plan: Plan, array: Array | None, start: np.ndarray) -> Blocks:
    design, product, num_slices, num_intervals = layer.design, layer.product, plan.num_slices, len(start) - 1
    interval, of_slice = np.divmod(np.arange(num_intervals * num_slices), num_slices)
    rows, arcs = np.diff(start)[interval], np.diff(layer.workload.indptr[start])[interval]
    depth, last = np.diff(plan.slice_start)[of_slice], np.arange(1, num_intervals + 1) * num_slices - 1
    own_dim = product.own_dim if array is None else 0
    edges = _edge_requests(layer, start, interval, rows, arcs)
    row_reads = [_source_requests(layer, plan, array is None, start)]
    if product.own_dim and array is None:
        row_reads.append(layer.row_requests("combined rows", layer.own_at, own_dim, start, last))
    elif product.own_dim:
        own = Windows(np.arange(num_intervals), start[:-1], np.diff(start))
        row_reads.append(_slices_of(layer, plan, own, layer.input_at, product.rows.dim, "input rows"))
    num_sums = int((arcs * depth).sum()) + own_dim * int(start[-1] - start[0])
    sum_bytes, row_bytes = num_sums * design.rules["sum_bits"] // 8, sum(read.total_bytes for read in row_reads)
    events = {"simd": num_sums, "write:edge": edges.total_bytes, "read:edge": edges.total_bytes,
              "write:input": row_bytes, "read:input": layer.num_bytes(num_sums),
              "read:aggregation": sum_bytes, "write:aggregation": sum_bytes}
    reads, is_last = [edges, *row_reads], of_slice == num_slices - 1
    cycles = [simd_cycles(design, arcs, depth) + is_last * simd_cycles(design, rows, own_dim)]
    if array is not None:
        weights = weight_requests(design, product, layer.weights_at, plan.slice_start, of_slice,
                                  (interval == 0) & (start[0] == 0))
        reads.append(weights)
        cycles.append(array.cycles(rows, depth, product.combined_dim))
        events |= array.events(design, rows, depth, product.combined_dim, weights)
        events["read:aggregation"] += int((rows * depth).sum()) * design.rules["sum_bits"] // 8
        # A result is read and written once per slice.
        events["read:output"] = int(rows.sum()) * product.combined_dim * design.rules["sum_bits"] // 8
        events["write:output"] = events["read:output"]
    return Blocks(np.stack(cycles, axis=1), in_order(*reads),
                  layer.row_requests("output rows", layer.result_at, product.result_dim, start, last), events)


def _edge_requests(layer: Layer, start: np.ndarray, interval: np.ndarray, rows: np.ndarray, arcs: np.ndarray
                   ) -> Requests:
    begin, id_bytes = start[:-1] + layer.workload.indptr[start[:-1]], layer.design.rules["id_bytes"]
    return requests_of("edges", np.arange(len(interval)), layer.edges_at + id_bytes * begin[interval],
                       id_bytes * (rows + arcs))


def _source_requests(layer: Layer, plan: Plan, is_combined: bool, start: np.ndarray) -> Requests:
    indptr = layer.workload.indptr
    degree = indptr[start[0] + 1:start[-1] + 1] - indptr[start[0]:start[-1]]
    interval = np.repeat(np.arange(start[-1] - start[0]) // plan.rows_a_block, degree)
    windows = windows_of(interval, layer.workload.indices[indptr[start[0]]:indptr[start[-1]]],
                         layer.workload.num_nodes, plan.window_rows)
    if is_combined:
        return _slices_of(layer, plan, windows, layer.combined_at, layer.product.aggregated_dim, "combined rows")
    return _slices_of(layer, plan, windows, layer.input_at, layer.product.rows.dim, "input rows")


def _slices_of(layer: Layer, plan: Plan, windows: Windows, at: int, dim: int, kind: str) -> Requests:
    num_slices, row_bytes = plan.num_slices, layer.num_bytes(dim)
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
