"""The input of an accelerator: a graph's edges and, per row of features, the number of nonzeros and their bit-width.

Every design moves and multiplies by these counts; values of features are not needed. Where a design needs columns, the
nonzeros of a slice are spread evenly in it. `compressed_start` and `dense_start` say where rows begin in DRAM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from hpcgnn.errors import ConfigError

NUM_SLICES = 4          # slices of a row's columns, as MEGA's four Combination Tiles take them (§V-A, Table IV)
KNUTH = 2654435761      # 2^32 over the golden ratio: consecutive numbers are spread over all of 32 bits
Count = TypeVar("Count", np.ndarray, int)


@dataclass(frozen=True)
class FeatureCounts:
    nonzeros: np.ndarray     # (num_rows, NUM_SLICES) int32, per slice; `slice_bounds` has the columns of each
    bit_width: np.ndarray    # (num_rows,) uint8, bits of the row's values
    dim: int                 # columns

    def __post_init__(self) -> None:
        num_rows = len(self.bit_width)
        if self.dim < 1 or self.nonzeros.shape != (num_rows, NUM_SLICES):
            raise ConfigError(f"counts of {num_rows} rows of {self.dim} columns have the shape {self.nonzeros.shape}; "
                              f"expected ({num_rows}, {NUM_SLICES}) and at least one column")
        if num_rows and ((self.nonzeros < 0).any() or (self.nonzeros > np.diff(self.slice_bounds)).any()):
            raise ConfigError(f"a slice of {self.slice_dim} columns has fewer than 0 nonzeros, or more than columns")

    @property
    def num_rows(self) -> int:
        return len(self.bit_width)

    @property
    def slice_dim(self) -> int:
        return -(-self.dim // NUM_SLICES)

    @property
    def slice_bounds(self) -> np.ndarray:
        """First column of each slice, then the number of all columns, (NUM_SLICES + 1,) int64."""
        return np.minimum(np.arange(NUM_SLICES + 1, dtype=np.int64) * self.slice_dim, self.dim)

    def row_nonzeros(self) -> np.ndarray:
        return self.nonzeros.sum(axis=1, dtype=np.int64)

    def nonzeros_before(self, nonzeros: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Number of nonzeros before each column, (..., n) int64, rounded down.

        nonzeros : (..., NUM_SLICES) int         of some rows, or of several rows together
        column : (n,) int64                      from 0 to dim
        """
        bounds = self.slice_bounds
        width = np.diff(bounds)
        covered = np.clip(column[:, None] - bounds[:-1], 0, width)
        return (nonzeros[..., None, :].astype(np.int64) * covered // np.maximum(width, 1)).sum(axis=-1)

    def spread_columns(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Row and distinct columns of the nonzeros of rows first to last - 1, (num_values,) int64, rows ascending.

        The columns are evenly spaced in a slice, from a column that a hash of row and slice draws. Assumed: since the
        true columns are unknown, no column is needed by more rows than another.
        """
        bounds = self.slice_bounds
        width = np.tile(np.diff(bounds), last - first)
        count = self.nonzeros[first:last].astype(np.int64).ravel()
        index = np.arange(first * NUM_SLICES, last * NUM_SLICES, dtype=np.int64)
        offset = (index * KNUTH % 2**32) * width >> 32
        slot, place = places_within(count)
        within = (offset[slot] + place * width[slot] // count[slot]) % width[slot]
        return first + slot // NUM_SLICES, np.tile(bounds[:-1], last - first)[slot] + within


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

    @property
    def result_dim(self) -> int:
        """Columns of the result: the aggregated ones (GraphSage's others are added to them), or all if none is."""
        return self.aggregated_dim or self.combined_dim

    @property
    def own_dim(self) -> int:
        """Columns of XW that are added to the sum of their own row."""
        return self.combined_dim - self.result_dim

    def ordered(self, order: np.ndarray) -> Product:
        """The same product with row order[i] as row i."""
        rows = self.rows
        return replace(self, rows=FeatureCounts(rows.nonzeros[order], rows.bit_width[order], rows.dim))


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
        width = np.full(self.num_nodes, bit_width, np.uint8)
        return replace(self, products=tuple(replace(product, rows=replace(product.rows, bit_width=width))
                                            for product in self.products))

    def rows_after(self, index: int) -> FeatureCounts | None:
        """The rows that the product after `index` reads; None after the last, or if they have other columns."""
        after = self.products[index + 1:index + 2]
        return after[0].rows if after and after[0].rows.dim == self.products[index].result_dim else None


def size_in_bytes(num_values: Count, bit_width: int) -> Count:
    return -(-num_values * bit_width // 8)


def starts_of(sizes: np.ndarray) -> np.ndarray:
    start = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=start[1:])
    return start


def places_within(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of counts[0] + counts[1] + ... things in groups, the group of each, and its place in the group."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - (np.cumsum(counts) - counts)[group]


def compressed_start(rows: FeatureCounts, bit_width: int, id_bytes: int) -> np.ndarray:
    """Byte where each CSR row begins, then the end, (num_rows + 1,) int64: an offset, and an id and a value each."""
    nonzeros = rows.row_nonzeros()
    return starts_of(id_bytes + id_bytes * nonzeros + size_in_bytes(nonzeros, bit_width))


def dense_start(workload: Workload, index: int, bit_width: int) -> np.ndarray:
    """Byte where each row of the result of product `index` begins, then the end, (num_nodes + 1,) int64."""
    return np.arange(workload.num_nodes + 1) * size_in_bytes(workload.products[index].result_dim, bit_width)
