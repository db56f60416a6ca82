"""One product as MEGA runs it: its rows, edges, buffers and places in DRAM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.condense_traffic import BYTES_AN_ID
from hpcgnn.accelerators.mega.layout import Connections, Rules, StoredRows, bytes_of, pieces
from hpcgnn.accelerators.mega.units import WeightLoads, region_offsets, weight_loads
from hpcgnn.accelerators.rows import starts_of
from hpcgnn.accelerators.schedule import AddressSpace, Requests
from hpcgnn.accelerators.workload import Product


@dataclass(frozen=True)
class PlacedRows:
    """Rows in DRAM: stored features, or the sums of the last layer, which have no positions.

    `value_end` and `position_end`, (num_rows + 1,) int64, are as in `StoredRows`.
    """

    value_end: np.ndarray
    position_end: np.ndarray
    value_address: int
    position_address: int

    def read(self, bounds: np.ndarray) -> list[Requests]:
        return [pieces(self.value_end, bounds, self.value_address, "input rows"),
                pieces(self.position_end, bounds, self.position_address, "positions")]

    def written(self, bounds: np.ndarray) -> list[Requests]:
        return [pieces(self.value_end, bounds, self.value_address, "output rows"),
                pieces(self.position_end, bounds, self.position_address, "output rows")]


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
    def encodes(self) -> bool:
        return self.following is not None

    def output_end(self, row: int) -> int:
        return int(self.following.value_end[row] + self.following.position_end[row])

    @property
    def output_dim(self) -> int:
        return self.product.aggregated_dim or self.product.combined_dim

    @property
    def has_own_half(self) -> bool:
        """Whether further columns of XW are added to the sum of their own row, as in GraphSage."""
        return 0 < self.product.aggregated_dim < self.product.combined_dim

    @property
    def row_bytes(self) -> int:
        return bytes_of(self.product.aggregated_dim, self.rules["combined_bits"])

    @property
    def own_row_bytes(self) -> int:
        own_dim = self.product.combined_dim - self.product.aggregated_dim if self.has_own_half else 0
        return bytes_of(own_dim, self.rules["combined_bits"])

    @property
    def sum_bytes(self) -> int:
        return bytes_of(self.output_dim, self.rules["sum_bits"])

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
        in_buffer = self.stored.value_end + self.stored.position_end
        return weight_loads(in_buffer if self.source else np.zeros_like(in_buffer), self.product.rows.row_nonzeros(),
                            self.product.rows.dim, self.product.combined_dim, self.rules)

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
    sizes = (rows.dim * bytes_of(layer.product.combined_dim, rules["weight_bits"]),
             layer.num_rows * layer.row_bytes + rules["line_bytes"], layer.num_rows * layer.own_row_bytes,
             region_bytes, list_bytes,
             layer.fused_edge_end[-1] if layer.product.aggregated_dim else 0,
             layer.later_edge_end[-1] if layer.has_later else 0)
    return Places(*(space.reserve(size) for size in sizes))
