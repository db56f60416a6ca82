"""The input of an accelerator: a graph's edges and, per row of features, the number of nonzeros and their bit-width.

Every design moves and multiplies by these counts; values of features are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.errors import ConfigError

NUM_SLICES = 4          # slices of a row's columns, as MEGA's four Combination Tiles take them (§V-A, Table IV)


@dataclass(frozen=True)
class FeatureCounts:
    # (num_rows, NUM_SLICES) int32, per slice; slice s has the columns s * slice_dim to min((s + 1) * slice_dim, dim) -
    # 1
    nonzeros: np.ndarray
    bit_width: np.ndarray    # (num_rows,) uint8, bits of the row's values
    dim: int                 # columns

    def __post_init__(self) -> None:
        num_rows = len(self.bit_width)
        if self.dim < 1 or self.nonzeros.shape != (num_rows, NUM_SLICES):
            raise ConfigError(f"counts of {num_rows} rows of {self.dim} columns have the shape {self.nonzeros.shape}; "
                              f"expected ({num_rows}, {NUM_SLICES}) and at least one column")
        first = np.arange(NUM_SLICES) * self.slice_dim
        columns = np.clip(self.dim - first, 0, self.slice_dim)
        if num_rows and ((self.nonzeros < 0).any() or (self.nonzeros > columns).any()):
            raise ConfigError(f"a slice of {self.slice_dim} columns has fewer than 0 nonzeros, or more than columns")

    @property
    def num_rows(self) -> int:
        return len(self.bit_width)

    @property
    def slice_dim(self) -> int:
        return -(-self.dim // NUM_SLICES)

    def row_nonzeros(self) -> np.ndarray:
        return self.nonzeros.sum(axis=1, dtype=np.int64)

    def at_width(self, bit_width: int) -> FeatureCounts:
        """The same values at one width, as an accelerator without mixed precision stores them."""
        return replace(self, bit_width=np.full(self.num_rows, bit_width, np.uint8))


@dataclass(frozen=True)
class Product:
    name: str
    rows: FeatureCounts    # X
    combined_dim: int      # columns of W
    # how many columns are summed over the edges: all in GCN and in the first product of GIN; none in its second
    # product; in GraphSage the first half, while the second half is added to the sum of its own row
    aggregated_dim: int

    def __post_init__(self) -> None:
        if not 0 <= self.aggregated_dim <= self.combined_dim or self.combined_dim < 1:
            raise ConfigError(f"{self.aggregated_dim} of {self.combined_dim} columns can't be aggregated")


@dataclass(frozen=True)
class Workload:
    name: str                        # names of the graph and the model
    indptr: np.ndarray               # (num_nodes + 1,) int64, edges by destination
    # (num_edges,) int32, sources, ascending within a row; with self-loops where the model has them (GCN, GIN)
    indices: np.ndarray
    products: tuple[Product, ...]    # products in the order of the inference; each has num_nodes rows

    def __post_init__(self) -> None:
        if any(product.rows.num_rows != self.num_nodes for product in self.products) or not self.products:
            raise ConfigError(f"{self.name} has {self.num_nodes} nodes; expected products, each with a row per node")

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_arcs(self) -> int:
        return len(self.indices)

    def at_width(self, bit_width: int) -> Workload:
        """The same inference with all rows at one width.

        Zeros stay zeros. This favors accelerators that skip them, since a model in floats has fewer zeros.
        """
        return replace(self, products=tuple(replace(product, rows=product.rows.at_width(bit_width))
                                            for product in self.products))
