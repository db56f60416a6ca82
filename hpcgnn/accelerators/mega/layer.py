"""One product as MEGA runs it: its rows, edges, buffers and places in DRAM, and the events that cost energy.

Events are operations of units and bytes of buffers, for runs of blocks. What DRAM brings is written to a buffer; what
goes to DRAM is read from one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.condense_traffic import BYTES_AN_ID
from hpcgnn.accelerators.mega.layout import Connections, Rules, StoredRows
from hpcgnn.accelerators.mega.units import WeightLoads, fed_bits, region_offsets, weight_loads
from hpcgnn.accelerators.schedule import KIND, AddressSpace, Requests, single_requests
from hpcgnn.accelerators.workload import Count, Product, size_in_bytes, starts_of

Events = dict[str, int]


def pieces(kind: str, end: np.ndarray, bounds: np.ndarray, address: int = 0) -> Requests:
    """One request per block: rows bounds[i] to bounds[i + 1] - 1 of a region, where row r begins at byte end[r]."""
    begin = end[bounds]
    return single_requests(kind, np.arange(len(bounds) - 1), address + begin[:-1], np.diff(begin))


@dataclass(frozen=True)
class PlacedRows:
    """Rows in DRAM: stored features, or the sums of the last layer, which have no positions.

    `values` and `positions`, (num_rows + 1,) int64, are the addresses of each row's, then the ends.
    """

    values: np.ndarray
    positions: np.ndarray

    def read(self, bounds: np.ndarray) -> list[Requests]:
        return [pieces("input rows", self.values, bounds), pieces("positions", self.positions, bounds)]

    def written(self, bounds: np.ndarray) -> list[Requests]:
        return [pieces("output rows", self.values, bounds), pieces("output rows", self.positions, bounds)]


@dataclass(frozen=True)
class Layer:
    rules: Rules
    product: Product
    stored: StoredRows              # X
    connections: Connections
    # source, target: where X is read, and where the next X or the sums are written; None: it stays in the Input Buffer
    source: PlacedRows | None
    target: PlacedRows | None
    following: StoredRows | None    # the next X, made by the Encoder; None if sums leave unencoded

    @property
    def num_rows(self) -> int:
        return self.product.rows.num_rows

    @property
    def row_bytes(self) -> int:
        return size_in_bytes(self.product.aggregated_dim, self.rules["combined_bits"])

    @property
    def own_row_bytes(self) -> int:
        return size_in_bytes(self.product.own_dim, self.rules["combined_bits"])

    @property
    def is_kept(self) -> bool:
        """Whether XW stays on the chip, so that no subgraph reads rows of other subgraphs from DRAM.

        XW stays if half of the Combination Buffer holds it, or if only the first subgraph, which is aggregated at once,
        needs XW.
        """
        fits = self.num_rows * (self.row_bytes + self.own_row_bytes) <= self.rules.half("combination")
        return not self.product.aggregated_dim or fits or not self.has_later

    @property
    def has_later(self) -> bool:
        return bool(self.product.aggregated_dim) and self.connections.num_fused_rows < self.num_rows

    @property
    def condenses(self) -> bool:
        return not self.is_kept and self.rules.sparse_reads == "condense"

    @cached_property
    def weights(self) -> WeightLoads:
        in_buffer = self.stored.end if self.source else np.zeros_like(self.stored.value_end)
        return weight_loads(in_buffer, self.product.rows.row_nonzeros(), self.product.rows.dim,
                            self.product.combined_dim, self.rules)

    @cached_property
    def fused_edge_end(self) -> np.ndarray:
        """Byte where the edges of each source into the first subgraph begin, (num_rows + 1,) int64."""
        arcs = self.connections.fused_arcs
        return starts_of(arcs * self.rules["edge_bytes"] + (arcs > 0) * self.rules["column_bytes"])

    @cached_property
    def later_edge_end(self) -> np.ndarray:
        """Byte where the edges of each subgraph begin, (num_subgraphs + 1,) int64."""
        own, copied = self.connections.own_arcs, self.connections.copy_arcs
        edge, column = self.rules["edge_bytes"], self.rules["column_bytes"]
        return starts_of(self.connections.sums_by_subgraph(own * edge + (own > 0) * column, copied * edge + column))

    def encoder_cycles(self, num_rows: Count) -> Count:
        """Cycles in which result rows are quantized and encoded, 32 values at a time and row by row (§V-D)."""
        return num_rows * (self.following is not None) * -(-self.product.result_dim // self.rules.units("encoder"))

    def combination_events(self, rows: slice, reads: Requests, writes: Requests) -> Events:
        """Events of combining rows. Each pass of m columns reads X, and a row of W for each value."""
        rules, product = self.rules, self.product
        count = product.rows.nonzeros[rows].sum(axis=1, dtype=np.int64)
        num_values, passes = int(count.sum()), rules.column_passes(product.combined_dim)
        num_bits = int((count * fed_bits(self.stored.width[rows], rules)).sum())
        in_buffer = int(self.stored.end[rows.stop] - self.stored.end[rows.start])
        events = {"bse": num_bits * product.combined_dim, "decoder": num_values * passes,
                  "crossbar": num_values * -(-product.combined_dim // rules["crossbar_columns"]),
                  "write:weight": _bytes(reads, "weights"),
                  "read:weight": num_values * size_in_bytes(product.combined_dim, rules["weight_bits"]),
                  "write:input": _bytes(reads, "input rows", "positions"), "read:input": in_buffer * passes}
        if product.aggregated_dim:
            combined_bytes = (rows.stop - rows.start) * (self.row_bytes + self.own_row_bytes)
            return events | {"write:combination": combined_bytes, "read:combination": _bytes(writes, "combined rows")}
        return added(events, self._output_events(rows.start, rows.stop, from_sums=False))

    def fused_events(self, rows: slice, is_last: bool, reads: Requests, writes: Requests) -> Events:
        """Events of the Aggregation Engine and the Condense Unit on rows as they are combined."""
        arcs, fused, num_rows = self.connections, self.connections.num_fused_rows, rows.stop - rows.start
        if not self.product.aggregated_dim:
            return {}
        num_own = max(min(rows.stop, fused) - rows.start, 0) * bool(self.product.own_dim)
        events = self._sum_events(int(arcs.fused_arcs[rows].sum()) + num_own)
        listed = _bytes(reads, "edges", "lists")
        events |= {"write:edge": listed, "read:edge": listed}
        if is_last:
            events = added(events, self._output_events(0, fused, from_sums=True))
        if self.condenses:
            copied = arcs.regions.copied_row
            num_copies = int(((copied >= rows.start) & (copied < rows.stop)).sum())
            events |= {"condense_unit": num_rows * (arcs.rows.num_clusters - arcs.num_fused),
                       "write:sparse": num_copies * self.row_bytes, "read:sparse": _bytes(writes, "condensed rows")}
        return events

    def later_events(self, first: int, last: int, reads: Requests) -> Events:
        """Events of aggregating subgraphs first to last - 1. A source's row is read once per subgraph."""
        arcs = self.connections
        begin, end = np.maximum(arcs.rows.start[[first, last]], arcs.num_fused_rows).tolist()
        regions = slice(*arcs.regions.start[[first, last]].tolist())
        num_own = (end - begin) * bool(self.product.own_dim)
        num_arcs = int(arcs.own_arcs[begin:end].sum() + arcs.copy_arcs[regions].sum())
        own_sources, copies = int((arcs.own_arcs[begin:end] > 0).sum()), regions.stop - regions.start
        sparse, edges = copies if self.condenses else 0, _bytes(reads, "edges")
        events = self._sum_events(num_arcs + num_own) | {
            "condense_unit": own_sources + copies if self.condenses else 0,
            "write:edge": edges, "read:edge": edges,
            "write:combination": _bytes(reads, "combined rows"), "write:sparse": _bytes(reads, "condensed rows"),
            "read:combination": (own_sources + copies - sparse) * self.row_bytes + num_own * self.own_row_bytes,
            "read:sparse": sparse * self.row_bytes}
        return added(events, self._output_events(begin, end, from_sums=True))

    def _sum_events(self, num_arcs: int) -> Events:
        num_bytes = num_arcs * size_in_bytes(self.product.result_dim, self.rules["sum_bits"])
        return {"aggregation_unit": num_arcs * self.product.result_dim, "read:aggregation": num_bytes,
                "write:aggregation": num_bytes}

    def _output_events(self, first: int, last: int, from_sums: bool) -> Events:
        # Rows go into the Input Buffer and, if it is too small, on to DRAM.
        sum_bytes = size_in_bytes(self.product.result_dim, self.rules["sum_bits"])
        events = {"read:aggregation": (last - first) * sum_bytes * from_sums}
        if self.following is None:
            return events
        num_bytes = int(self.following.end[last] - self.following.end[first])
        return events | {"encoder": (last - first) * self.product.result_dim, "write:input": num_bytes,
                         "read:input": num_bytes if self.target else 0}


def added(events: Events, others: Events) -> Events:
    return {name: events.get(name, 0) + others.get(name, 0) for name in events | others}


def _bytes(asked: Requests, *kinds: str) -> int:
    return int(asked.num_bytes[np.isin(asked.kind, [KIND[kind] for kind in kinds])].sum())


class Places(NamedTuple):
    weights: int
    combined: int
    own: int
    regions: int
    lists: int
    fused_edges: int
    later_edges: int


def places_of(layer: Layer, space: AddressSpace) -> Places:
    """Reserve the regions of a layer. Rows of XW and condensed regions are read in whole lines."""
    rules, rows = layer.rules, layer.product.rows
    region_bytes = list_bytes = 0
    if layer.condenses:
        regions = layer.connections.regions
        region_bytes = int(region_offsets(regions, layer.row_bytes, rules.row_buffer)[-1]) + rules["line_bytes"]
        list_bytes = regions.num_copies * BYTES_AN_ID
    sizes = (rows.dim * size_in_bytes(layer.product.combined_dim, rules["weight_bits"]),
             layer.num_rows * layer.row_bytes + rules["line_bytes"], layer.num_rows * layer.own_row_bytes,
             region_bytes, list_bytes,
             layer.fused_edge_end[-1] if layer.product.aggregated_dim else 0,
             layer.later_edge_end[-1] if layer.has_later else 0)
    return Places(*(space.reserve(size) for size in sizes))
