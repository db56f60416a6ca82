"""GROW, Hwang et al., HPCA 2023: A(XW) row by row, with each cluster's high-degree rows in a cache.

How long a request takes is not known here.

Both products go by Gustavson's algorithm: a value of the sparse matrix times a row of the dense one, all in one array
of MACs. For aggregation the graph is cut by METIS; the rows of the current cluster that most arcs of the cluster read
(HDN) fill the cache before it begins, and any other row is read from DRAM when it is needed. `runahead` rows are taken
ahead, so that their misses overlap: they are a block, and a row that several of them miss is read once. assumed, where
the paper is silent or MEGA's columns are wider than its own: rows of a cluster that the cluster doesn't read stay out;
the Output Buffer holds the sums of all rows of a block; ids and offsets take `id_bytes`, those of the list of cached
rows `list_id_bytes`; a value of the adjacency matrix is 0 or 1 and takes no byte (MEGA, §IV).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hpcgnn.accelerators.compressed_rows import compressed_start, result_start, starts_of
from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.grow_layer import Layer, combination_blocks
from hpcgnn.accelerators.needs import check_needs
from hpcgnn.accelerators.row_requests import distinct, in_order, own_dim, requests_of, runs_of, size_in_bytes
from hpcgnn.accelerators.schedule import NO_REQUESTS, AddressSpace, Blocks, Pass, Requests
from hpcgnn.accelerators.subgraphs import Subgraphs, subgraphs_of
from hpcgnn.accelerators.workload import Workload
from hpcgnn.partition.condense import ClusteredRows


def passes(design: Design, workload: Workload) -> list[Pass]:
    """Return GROW's passes: combination, and aggregation where a product has one.

    Raises
    ------
    ConfigError      the design lacks something, or METIS gave up
    """
    check_needs(design, ("mac",), ("sparse", "list", "cache", "output"),
                ("rows_a_cluster", "runahead", "sum_bits", "id_bytes", "list_id_bytes"))
    graph = subgraphs_of(workload.indptr, workload.indices, design.rules["rows_a_cluster"], design.rules.get("seed", 0))
    workload = _laid_out(workload, graph)
    made = []
    for layer in _layers(design, workload, graph.rows):
        name = layer.product.name
        made.append(Pass(f"{name} combination", ("multiply",), partial(combination_blocks, layer)))
        if layer.product.aggregated_dim:
            made.append(Pass(f"{name} aggregation", ("multiply",), partial(_aggregation_blocks, layer)))
    return made


def _laid_out(workload: Workload, graph: Subgraphs) -> Workload:
    """Return the workload with nodes in the order of clusters: the paper relabels them before inference."""
    products = tuple(replace(product, rows=replace(product.rows, nonzeros=product.rows.nonzeros[graph.order],
                                                   bit_width=product.rows.bit_width[graph.order]))
                     for product in workload.products)
    return Workload(workload.name, graph.rows.indptr, graph.rows.indices, products)


def _layers(design: Design, workload: Workload, graph: ClusteredRows) -> Iterator[Layer]:
    rules, space, num_nodes = design.rules, AddressSpace(), workload.num_nodes
    edges_at = space.reserve(rules["id_bytes"] * (num_nodes + workload.num_arcs))
    lists_at = space.reserve(rules["list_id_bytes"] * num_nodes)
    start = block_start_of(graph.start, rules["runahead"])
    nonzeros = workload.products[0].rows.row_nonzeros()
    rows = compressed_start(nonzeros, design.bit_width, rules["id_bytes"])
    rows += space.reserve(rows[-1])
    for index, product in enumerate(workload.products):
        result = result_start(workload, index, design.bit_width, rules["id_bytes"])
        result += space.reserve(result[-1])
        weights_at = space.reserve(size_in_bytes(product.rows.dim * product.combined_dim, design.bit_width))
        combined_at = space.reserve(num_nodes * size_in_bytes(product.combined_dim, design.bit_width))
        yield Layer(design, graph, product, start, rows, result, weights_at, combined_at, edges_at, lists_at)
        rows = result


def block_start_of(cluster_start: np.ndarray, rows_a_block: int) -> np.ndarray:
    """Return the first row of each block, and the number of rows; no block has rows of two clusters.

    Parameters
    ----------
    cluster_start : (num_clusters + 1,) int64
    """
    size = np.diff(cluster_start)
    num_blocks = -(-size // rows_a_block)
    within = np.arange(num_blocks.sum()) - np.repeat(np.cumsum(num_blocks) - num_blocks, num_blocks)
    return np.append(np.repeat(cluster_start[:-1], num_blocks) + within * rows_a_block, cluster_start[-1])


def cached_rows(graph: ClusteredRows, capacity: int) -> np.ndarray:
    """Return which rows are in the cache while their cluster is aggregated, (num_rows,) bool: those that most arcs
    within the cluster read, at most `capacity` of a cluster; ties go to the first row.
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


def capacity_of(design: Design, dim: int) -> int:
    """Return how many rows of so many columns the cache holds, and the list names."""
    return min(design.buffer_bytes("cache") // int(size_in_bytes(dim, design.bit_width)),
               design.buffer_bytes("list") // design.rules["list_id_bytes"])


def _aggregation_blocks(layer: Layer) -> Iterator[Blocks]:
    is_cached = cached_rows(layer.graph, capacity_of(layer.design, layer.product.aggregated_dim))
    for first, last in runs_of(layer.graph.indptr[layer.block_start] + layer.block_start):
        yield _blocks_of_rows(layer, is_cached, first, last)


def _blocks_of_rows(layer: Layer, is_cached: np.ndarray, first: int, last: int) -> Blocks:
    graph, product, rules = layer.graph, layer.product, layer.design.rules
    start, dim, own = layer.block_start[first:last + 1], product.aggregated_dim, own_dim(product)
    rows, arcs, block = np.diff(start), np.diff(graph.indptr[start]), np.arange(last - first)
    edges = requests_of("edges", block, layer.edges_at + rules["id_bytes"] * (start[:-1] + graph.indptr[start[:-1]]),
                        rules["id_bytes"] * (rows + arcs))
    lists, filled = _fills(layer, is_cached, start)
    missed, num_hits = _misses(layer, is_cached, start, arcs)
    row_bytes = layer.num_bytes(dim)
    own_rows = _rows_of_combined(layer, np.repeat(block, rows), np.arange(start[0], start[-1]), dim, own)
    num_sums, sum_bytes = int(arcs.sum()) * dim + int(rows.sum()) * own, rules["sum_bits"] // 8
    events = {"mac": num_sums, "write:sparse": int(edges.num_bytes.sum()), "read:sparse": int(edges.num_bytes.sum()),
              "write:list": int(lists.num_bytes.sum()), "read:list": int(arcs.sum()) * rules["list_id_bytes"],
              "write:cache": int(filled.num_bytes.sum()), "read:cache": num_hits * row_bytes,
              "read:output": num_sums * sum_bytes, "write:output": num_sums * sum_bytes}
    cycles = arcs * layer.vector_cycles(dim) + rows * layer.vector_cycles(own)
    return Blocks(cycles[:, None], in_order(lists, filled, edges, missed, own_rows),
                  layer.result_requests(first, last, block), events)


def _fills(layer: Layer, is_cached: np.ndarray, start: np.ndarray) -> tuple[Requests, Requests]:
    """Return the requests for lists and for cached rows, of the clusters that begin in these blocks."""
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
    return lists, _rows_of_combined(layer, of_row, row, 0, layer.product.aggregated_dim)


def _misses(layer: Layer, is_cached: np.ndarray, start: np.ndarray, arcs: np.ndarray) -> tuple[Requests, int]:
    """Return the rows that blocks read besides the cache's, once a block; and how many arcs find theirs there."""
    graph = layer.graph
    source = graph.indices[graph.indptr[start[0]]:graph.indptr[start[-1]]].astype(np.int64)
    block = np.repeat(np.arange(len(arcs)), arcs)
    cluster = np.searchsorted(graph.start, start[:-1], side="right") - 1
    begin, end = graph.start[cluster][block], graph.start[cluster + 1][block]
    hits = is_cached[source] & (source >= begin) & (source < end)
    key = distinct(block[~hits] * graph.num_rows + source[~hits])
    return (_rows_of_combined(layer, key // graph.num_rows, key % graph.num_rows, 0, layer.product.aggregated_dim),
            int(hits.sum()))


def _rows_of_combined(layer: Layer, block: np.ndarray, row: np.ndarray, first_column: int, num_columns: int
                      ) -> Requests:
    """Return requests for columns of rows of XW."""
    address = layer.combined_at + row * layer.num_bytes(layer.product.combined_dim) + layer.num_bytes(first_column)
    return requests_of("combined rows", block, address, layer.num_bytes(num_columns))
