"""A product of GROW with its graph's clusters and its addresses, and its combination XW by rows. Aggregation is not
known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.feature_columns import nonzeros_before, spread_columns
from hpcgnn.accelerators.row_requests import distinct, in_order, requests_of, runs_of, size_in_bytes
from hpcgnn.accelerators.schedule import NO_REQUESTS, Blocks, Requests
from hpcgnn.accelerators.workload import FeatureCounts, Product
from hpcgnn.partition.condense import ClusteredRows


@dataclass(frozen=True)
class Layer:
    """A product whose rows, like those of its graph, are laid out cluster after cluster.

    Attributes
    ----------
    graph : ClusteredRows
    product : Product                              of the rows in this order
    block_start : (num_blocks + 1,) int64          first row of each block, and the number of rows
    input_start : (num_rows + 1,) int64            address of each row of X, in CSR, and the end
    result_start : (num_rows + 1,) int64           likewise of the rows that the product leaves
    weights_at, combined_at, edges_at, lists_at : int      addresses of W, XW, arcs and the lists of cached rows
    """

    design: Design
    graph: ClusteredRows
    product: Product
    block_start: np.ndarray
    input_start: np.ndarray
    result_start: np.ndarray
    weights_at: int
    combined_at: int
    edges_at: int
    lists_at: int

    def num_bytes(self, num_values: np.ndarray | int) -> np.ndarray | int:
        """Return the bytes of so many values."""
        return size_in_bytes(num_values, self.design.bit_width)

    def vector_cycles(self, dim: int) -> int:
        """Return the cycles of a value times a row of so many columns: the MACs take that many columns at once."""
        return -(-dim // self.design.units["mac"])

    def result_requests(self, first: int, last: int, block: np.ndarray, share: tuple[int, int] = (0, 1)) -> Requests:
        """Return what blocks first to last - 1 leave, or share[0] of share[1] equal parts of it."""
        begin = self.result_start[self.block_start[first:last + 1]]
        size = np.diff(begin)
        before, after = size * share[0] // share[1], size * (share[0] + 1) // share[1]
        return requests_of("output rows", block, begin[:-1] + before, after - before)


class CombinationPlan(NamedTuple):
    """How W is taken: its columns by panels, panel_start is (num_panels + 1,) int64; rows before num_cached stay."""

    panel_start: np.ndarray
    num_cached: int


def combination_plan(design: Design, product: Product) -> CombinationPlan:
    """Return the panels of columns of W with which least bytes are read.

    assumed: GROW's paper keeps W's rows in the cache, and has no W that is larger. Here X is read once for each panel
    of columns, a panel's first rows that fill the cache are read once, and another row for each value that needs it.
    """
    rows, columns = product.rows, product.combined_dim
    nonzeros = rows.nonzeros.sum(axis=0, dtype=np.int64)
    input_bytes = rows.num_rows * design.rules["id_bytes"] + nonzeros.sum() * (
        design.rules["id_bytes"] + design.bit_width / 8)
    num_panels = np.arange(1, columns + 1)
    cached = np.minimum(rows.dim, design.buffer_bytes("cache") // size_in_bytes(-(-columns // num_panels),
                                                                                design.bit_width))
    missed = nonzeros.sum() - nonzeros_before(nonzeros, rows, cached)
    num_bytes = num_panels * input_bytes + (cached + missed) * size_in_bytes(columns, design.bit_width)
    best = int(np.argmin(num_bytes))
    width = -(-columns // int(num_panels[best]))
    return CombinationPlan(np.append(np.arange(0, columns, width, dtype=np.int64), columns), int(cached[best]))


def combination_blocks(layer: Layer) -> Iterator[Blocks]:
    """Yield blocks of XW, panel after panel of W's columns."""
    plan, rows = combination_plan(layer.design, layer.product), layer.product.rows
    count = rows.row_nonzeros()
    work = np.concatenate([[0], np.cumsum(count)])[layer.block_start] + layer.block_start
    for panel in range(len(plan.panel_start) - 1):
        for first, last in runs_of(work):
            yield _blocks_of_panel(layer, plan, panel, first, last, count)


def _blocks_of_panel(layer: Layer, plan: CombinationPlan, panel: int, first: int, last: int, count: np.ndarray
                     ) -> Blocks:
    begin, end = layer.block_start[first], layer.block_start[last]
    dim, block = int(np.diff(plan.panel_start)[panel]), np.arange(last - first)
    panel_at = layer.weights_at + int(layer.num_bytes(layer.product.rows.dim * plan.panel_start[panel]))
    row_bytes = layer.num_bytes(dim)
    cached = (requests_of("weights", np.zeros(1, np.int64), panel_at, plan.num_cached * row_bytes) if first == 0
              else NO_REQUESTS)
    missed = _missed_weights(layer, plan, first, last, panel_at, row_bytes)
    address = layer.input_start[layer.block_start[first:last + 1]]
    inputs = requests_of("input rows", block, address[:-1], np.diff(address))
    per_block = np.add.reduceat(count[begin:end], layer.block_start[first:last] - begin)
    num_products, sum_bytes = int(per_block.sum()) * dim, layer.design.rules["sum_bits"] // 8
    events = {"mac": num_products, "write:sparse": int(inputs.num_bytes.sum()),
              "read:sparse": int(inputs.num_bytes.sum()), "write:cache": int(cached.num_bytes.sum()),
              "read:cache": _num_before(layer.product.rows, begin, end, plan.num_cached) * row_bytes,
              "read:output": num_products * sum_bytes, "write:output": num_products * sum_bytes}
    return Blocks((per_block * layer.vector_cycles(dim))[:, None], in_order(cached, inputs, missed),
                  _combined_writes(layer, plan, panel, first, last), events)


def _num_before(rows: FeatureCounts, begin: int, end: int, column: int) -> int:
    """Return how many values of rows lie before a column."""
    if column == rows.dim:
        return int(rows.nonzeros[begin:end].sum(dtype=np.int64))
    return int((spread_columns(rows, begin, end)[1] < column).sum())


def _missed_weights(layer: Layer, plan: CombinationPlan, first: int, last: int, panel_at: int, row_bytes: int
                    ) -> Requests:
    """Return the rows of W that are not cached, once for each block that needs them."""
    rows = layer.product.rows
    if plan.num_cached == rows.dim:
        return NO_REQUESTS
    row, column = spread_columns(rows, layer.block_start[first], layer.block_start[last])
    row, column = row[column >= plan.num_cached], column[column >= plan.num_cached]
    block = np.searchsorted(layer.block_start, row, side="right") - 1 - first
    key = distinct(block * rows.dim + column)
    return requests_of("weights", key // rows.dim, panel_at + key % rows.dim * row_bytes, row_bytes)


def _combined_writes(layer: Layer, plan: CombinationPlan, panel: int, first: int, last: int) -> Requests:
    num_panels, block = len(plan.panel_start) - 1, np.arange(last - first)
    if not layer.product.aggregated_dim:
        return layer.result_requests(first, last, block, (panel, num_panels))
    row = np.arange(layer.block_start[first], layer.block_start[last])
    before, after = layer.num_bytes(plan.panel_start[panel:panel + 2])
    address = layer.combined_at + row * layer.num_bytes(layer.product.combined_dim) + before
    return requests_of("combined rows", np.repeat(block, np.diff(layer.block_start[first:last + 1])), address,
                       after - before)
