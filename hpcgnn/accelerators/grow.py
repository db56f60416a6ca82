"""GROW, Hwang et al., HPCA 2023: A(XW) row by row, with each cluster's high-degree rows in a cache.

Both products use Gustavson's algorithm: a value of the sparse matrix times a row of the dense one, all in one array of
MACs. For aggregation METIS cuts the graph into clusters. Before a cluster begins, the rows that most of its edges read
(HDN) fill the cache; any other row is read from DRAM when it is needed. A block is `runahead` rows, so that their
misses overlap; a row that several of them miss is read once.

Assumed, where the paper is silent or MEGA's columns are wider than GROW's: rows of a cluster that the cluster doesn't
read stay out of the cache. The Output Buffer holds the sums of all rows of a block. Ids and offsets take `id_bytes`,
ids in the list of cached rows `list_id_bytes`. A value of the adjacency matrix is 0 or 1 and takes no byte (MEGA,
§IV).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.design import Design, check_needs
from hpcgnn.accelerators.schedule import (
    NO_REQUESTS,
    AddressSpace,
    Blocks,
    Pass,
    Requests,
    block_start_of,
    block_starts,
    distinct,
    in_order,
    requests_of,
    runs_of,
)
from hpcgnn.accelerators.subgraphs import subgraphs_of
from hpcgnn.accelerators.workload import (
    Count,
    Product,
    Workload,
    compressed_start,
    dense_start,
    size_in_bytes,
    starts_of,
)
from hpcgnn.partition.condense import ClusteredRows


def passes(design: Design, workload: Workload) -> list[Pass]:
    """GROW's passes: a combination per product, and an aggregation if it has one.

    Raises ConfigError if the design lacks something, or METIS gave up.
    """
    check_needs(design, ("mac",), ("sparse", "list", "cache", "output"),
                ("rows_a_cluster", "runahead", "sum_bits", "id_bytes", "list_id_bytes"))
    graph = subgraphs_of(workload.indptr, workload.indices, design.rules["rows_a_cluster"], design.rules.get("seed", 0))
    # The paper relabels nodes in the order of clusters before inference.
    workload = Workload(workload.name, graph.rows.indptr, graph.rows.indices,
                        tuple(product.ordered(graph.order) for product in workload.products))
    made = []
    for layer in _layers(design, workload, graph.rows):
        name = layer.product.name
        made.append(Pass(f"{name} combination", ("multiply",), partial(_combination_blocks, layer)))
        if layer.product.aggregated_dim:
            made.append(Pass(f"{name} aggregation", ("multiply",), partial(_aggregation_blocks, layer)))
    return made


@dataclass(frozen=True)
class Layer:
    """A product with the rows of its graph laid out cluster after cluster."""

    design: Design
    graph: ClusteredRows
    product: Product
    block_start: np.ndarray    # (num_blocks + 1,) int64, first row of each block, then the number of all rows
    # input_start, result_start: (num_rows + 1,) int64, address of each row of X in CSR, and of the result, and the end
    input_start: np.ndarray
    result_start: np.ndarray
    # weights_at, combined_at, edges_at, lists_at: addresses of W, XW, edges and the lists of cached rows
    weights_at: int
    combined_at: int
    edges_at: int
    lists_at: int

    def num_bytes(self, num_values: Count) -> Count:
        return size_in_bytes(num_values, self.design.bit_width)

    def vector_cycles(self, dim: int) -> int:
        return -(-dim // self.design.units["mac"])

    def combined_rows(self, block: np.ndarray, row: np.ndarray, begin: int, num_bytes: int) -> Requests:
        """Requests of `num_bytes` bytes from byte `begin` of rows of XW on."""
        address = self.combined_at + row * self.num_bytes(self.product.combined_dim) + begin
        return requests_of("combined rows", block, address, num_bytes)

    def result_rows(self, first: int, last: int, share: int = 0, num_shares: int = 1) -> Requests:
        begin = self.result_start[self.block_start[first:last + 1]]
        size = np.diff(begin)
        before, after = size * share // num_shares, size * (share + 1) // num_shares
        return requests_of("output rows", np.arange(last - first), begin[:-1] + before, after - before)

    def events(self, num_macs: int, streamed: Requests, filled: Requests, cache_reads: int) -> dict[str, int]:
        """Events of a run whose values and ids are `streamed`, and whose cache is `filled`."""
        sum_bytes = num_macs * (self.design.rules["sum_bits"] // 8)
        return {"mac": num_macs, "write:sparse": streamed.total_bytes, "read:sparse": streamed.total_bytes,
                "write:cache": filled.total_bytes, "read:cache": cache_reads,
                "read:output": sum_bytes, "write:output": sum_bytes}


def _layers(design: Design, workload: Workload, graph: ClusteredRows) -> Iterator[Layer]:
    rules, space, num_nodes = design.rules, AddressSpace(), workload.num_nodes
    edges_at = space.reserve(rules["id_bytes"] * (num_nodes + workload.num_arcs))
    lists_at = space.reserve(rules["list_id_bytes"] * num_nodes)
    start = block_start_of(graph.start, rules["runahead"])
    rows = space.place(compressed_start(workload.products[0].rows, design.bit_width, rules["id_bytes"]))
    for index, product in enumerate(workload.products):
        # Rows are stored as the next product reads them; dense after the last one.
        after = workload.rows_after(index)
        result = space.place(dense_start(workload, index, design.bit_width) if after is None
                             else compressed_start(after, design.bit_width, rules["id_bytes"]))
        weights_at = space.reserve(size_in_bytes(product.rows.dim * product.combined_dim, design.bit_width))
        combined_at = space.reserve(num_nodes * size_in_bytes(product.combined_dim, design.bit_width))
        yield Layer(design, graph, product, start, rows, result, weights_at, combined_at, edges_at, lists_at)
        rows = result


class CombinationPlan(NamedTuple):
    """Panels of W's columns, panel_start (num_panels + 1,) int64; rows before `num_cached` stay in the cache."""

    panel_start: np.ndarray
    num_cached: int


def combination_plan(design: Design, product: Product) -> CombinationPlan:
    """The panels of W's columns that read the fewest bytes.

    assumed: in GROW's paper, W always fits the cache. Here X is read once per panel, the first rows of a panel that
    fill the cache are read once, and any other row once per value that needs it.
    """
    rows, columns = product.rows, product.combined_dim
    nonzeros = rows.nonzeros.sum(axis=0, dtype=np.int64)
    input_bytes = rows.num_rows * design.rules["id_bytes"] + nonzeros.sum() * (
        design.rules["id_bytes"] + design.bit_width / 8)
    num_panels = np.arange(1, columns + 1)
    cached = np.minimum(rows.dim, design.buffer_bytes("cache") // size_in_bytes(-(-columns // num_panels),
                                                                                design.bit_width))
    missed = nonzeros.sum() - rows.nonzeros_before(nonzeros, cached)
    num_bytes = num_panels * input_bytes + (cached + missed) * size_in_bytes(columns, design.bit_width)
    best = int(np.argmin(num_bytes))
    width = -(-columns // int(num_panels[best]))
    return CombinationPlan(block_starts(columns, width), int(cached[best]))


def _combination_blocks(layer: Layer) -> Iterator[Blocks]:
    plan, count = combination_plan(layer.design, layer.product), layer.product.rows.row_nonzeros()
    work = starts_of(count)[layer.block_start] + layer.block_start
    for panel in range(len(plan.panel_start) - 1):
        for first, last in runs_of(work):
            yield _blocks_of_panel(layer, plan, panel, first, last, count)


def _blocks_of_panel(layer: Layer, plan: CombinationPlan, panel: int, first: int, last: int, count: np.ndarray
                     ) -> Blocks:
    rows, start = layer.product.rows, layer.block_start[first:last + 1]
    dim, block = int(np.diff(plan.panel_start)[panel]), np.arange(last - first)
    panel_at = layer.weights_at + int(layer.num_bytes(rows.dim * plan.panel_start[panel]))
    row_bytes = layer.num_bytes(dim)
    cached = (requests_of("weights", np.zeros(1, np.int64), panel_at, plan.num_cached * row_bytes) if first == 0
              else NO_REQUESTS)
    num_hits, missed = int(count[start[0]:start[-1]].sum()), NO_REQUESTS
    if plan.num_cached < rows.dim:
        row, column = rows.spread_columns(start[0], start[-1])
        is_missed = column >= plan.num_cached
        of_row = np.searchsorted(start, row[is_missed], side="right") - 1
        key = distinct(of_row * rows.dim + column[is_missed])
        missed = requests_of("weights", key // rows.dim, panel_at + key % rows.dim * row_bytes, row_bytes)
        num_hits -= int(is_missed.sum())
    address = layer.input_start[start]
    inputs = requests_of("input rows", block, address[:-1], np.diff(address))
    per_block = np.add.reduceat(count[start[0]:start[-1]], start[:-1] - start[0])
    if layer.product.aggregated_dim:
        before, after = layer.num_bytes(plan.panel_start[panel:panel + 2])
        writes = layer.combined_rows(np.repeat(block, np.diff(start)), np.arange(start[0], start[-1]), before,
                                     after - before)
    else:
        writes = layer.result_rows(first, last, panel, len(plan.panel_start) - 1)
    return Blocks((per_block * layer.vector_cycles(dim))[:, None], in_order(cached, inputs, missed), writes,
                  layer.events(int(per_block.sum()) * dim, inputs, cached, num_hits * row_bytes))


def cached_rows(graph: ClusteredRows, capacity: int) -> np.ndarray:
    """Which rows are in the cache while their cluster is aggregated, (num_rows,) bool.

    Per cluster, at most `capacity` rows that most edges within the cluster read; ties go to the first row.
    """
    cluster, uses = graph.cluster_of_rows(), np.zeros(graph.num_rows, np.int64)
    for first, last in runs_of(graph.indptr):
        source = graph.indices[graph.indptr[first]:graph.indptr[last]]
        own = np.repeat(cluster[first:last], np.diff(graph.indptr[first:last + 1]))
        uses += np.bincount(source[cluster[source] == own], minlength=graph.num_rows)
    order = np.lexsort((-uses, cluster))
    is_cached = np.zeros(graph.num_rows, bool)
    is_cached[order] = (np.arange(graph.num_rows) - graph.start[cluster] < capacity) & (uses[order] > 0)
    return is_cached


def _aggregation_blocks(layer: Layer) -> Iterator[Blocks]:
    design = layer.design
    capacity = min(design.buffer_bytes("cache") // layer.num_bytes(layer.product.aggregated_dim),
                   design.buffer_bytes("list") // design.rules["list_id_bytes"])
    is_cached = cached_rows(layer.graph, capacity)
    for first, last in runs_of(layer.graph.indptr[layer.block_start] + layer.block_start):
        yield _blocks_of_rows(layer, is_cached, first, last)


def _blocks_of_rows(layer: Layer, is_cached: np.ndarray, first: int, last: int) -> Blocks:
    graph, product, rules = layer.graph, layer.product, layer.design.rules
    start, dim, own = layer.block_start[first:last + 1], product.aggregated_dim, product.own_dim
    rows, arcs, block = np.diff(start), np.diff(graph.indptr[start]), np.arange(last - first)
    edges = requests_of("edges", block, layer.edges_at + rules["id_bytes"] * (start[:-1] + graph.indptr[start[:-1]]),
                        rules["id_bytes"] * (rows + arcs))
    lists, filled = _fills(layer, is_cached, start)
    missed, num_hits = _misses(layer, is_cached, start, arcs)
    row_bytes = layer.num_bytes(dim)
    own_rows = layer.combined_rows(np.repeat(block, rows), np.arange(start[0], start[-1]), row_bytes,
                                   layer.num_bytes(own))
    num_sums = int(arcs.sum()) * dim + int(rows.sum()) * own
    events = layer.events(num_sums, edges, filled, num_hits * row_bytes) | {
        "write:list": lists.total_bytes, "read:list": int(arcs.sum()) * rules["list_id_bytes"]}
    cycles = arcs * layer.vector_cycles(dim) + rows * layer.vector_cycles(own)
    return Blocks(cycles[:, None], in_order(lists, filled, edges, missed, own_rows), layer.result_rows(first, last),
                  events)


def _fills(layer: Layer, is_cached: np.ndarray, start: np.ndarray) -> tuple[Requests, Requests]:
    graph = layer.graph
    begins = graph.start[:-1][np.diff(graph.start) > 0]
    ends = graph.start[1:][np.diff(graph.start) > 0]
    is_here = (begins >= start[0]) & (begins < start[-1])
    if not is_here.any():
        return NO_REQUESTS, NO_REQUESTS
    begins, ends = begins[is_here], ends[is_here]
    block = np.searchsorted(start, begins)
    before = starts_of(is_cached[begins[0]:ends[-1]])
    row = begins[0] + np.flatnonzero(is_cached[begins[0]:ends[-1]])
    size = layer.design.rules["list_id_bytes"]
    lists = requests_of("lists", block, layer.lists_at + size * begins,
                        size * (before[ends - begins[0]] - before[begins - begins[0]]))
    of_row = block[np.searchsorted(begins, row, side="right") - 1]
    return lists, layer.combined_rows(of_row, row, 0, layer.num_bytes(layer.product.aggregated_dim))


def _misses(layer: Layer, is_cached: np.ndarray, start: np.ndarray, arcs: np.ndarray) -> tuple[Requests, int]:
    # A block reads a row that is not cached once, however many of its edges need it.
    graph = layer.graph
    source = graph.indices[graph.indptr[start[0]]:graph.indptr[start[-1]]].astype(np.int64)
    block = np.repeat(np.arange(len(arcs)), arcs)
    cluster = np.searchsorted(graph.start, start[:-1], side="right") - 1
    begin, end = graph.start[cluster][block], graph.start[cluster + 1][block]
    hits = is_cached[source] & (source >= begin) & (source < end)
    key = distinct(block[~hits] * graph.num_rows + source[~hits])
    missed = layer.combined_rows(key // graph.num_rows, key % graph.num_rows, 0,
                                 layer.num_bytes(layer.product.aggregated_dim))
    return missed, int(hits.sum())
