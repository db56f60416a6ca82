"""Condense-Edge: which rows each cluster needs from other clusters, and an order of rows by that need.

Example: clusters {0, 1} and {2, 3}, edges 2 -> 0, 2 -> 1 and 0 -> 3. The region of the first cluster is [2], needed
twice and copied once; the region of the second is [0]. `jobs/measurements/dram.py` counts the bytes this saves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse

from hpcgnn._ext import condense as kernels
from hpcgnn.errors import KernelError

MOST_ENTRIES = np.iinfo(np.int32).max


@dataclass(frozen=True)
class ClusteredRows:
    """A graph, CSR by destination, with rows laid out cluster after cluster."""

    start: np.ndarray      # (num_clusters + 1,) int64; cluster c has the rows start[c]:start[c + 1], perhaps none
    indptr: np.ndarray      # (num_rows + 1,) int64, CSR by destination
    indices: np.ndarray      # (num_entries,) int32, source rows

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_clusters(self) -> int:
        return len(self.start) - 1

    def cluster_of_rows(self) -> np.ndarray:
        """Cluster of each row, (num_rows,) int64."""
        return np.repeat(np.arange(self.num_clusters), np.diff(self.start))

    def is_sparse(self) -> np.ndarray:
        """Sparse connections, (num_entries,) bool: edges from a row of another cluster."""
        cluster = self.cluster_of_rows()
        return np.repeat(cluster, np.diff(self.indptr)) != cluster[self.indices]

    def without(self, is_dropped: np.ndarray) -> ClusteredRows:
        """The same rows without the entries marked in `is_dropped`, (num_entries,) bool."""
        kept_before = np.concatenate([[0], np.cumsum(~is_dropped)])
        return ClusteredRows(self.start, kept_before[self.indptr], self.indices[~is_dropped])


@dataclass(frozen=True)
class CondensedRegions:
    """The regions of Condense-Edge: the eID lists of MEGA's Algorithm 1, one after the other.

    A producer that computes its rows in order appends to each region in order, and a cluster reads its region from
    front to back. The halo rows of an exchange between ranks are such regions already.
    """

    start: np.ndarray      # (num_clusters + 1,) int64; region of cluster c: copied_row[start[c]:start[c + 1]]
    copied_row: np.ndarray      # (num_copies,) int32, rows of other clusters that a cluster needs, ascending
    place: np.ndarray      # (num_entries,) int32, the copy that serves an entry; -1 for a row of the same cluster

    @property
    def num_copies(self) -> int:
        return len(self.copied_row)


def condensed_regions(rows: ClusteredRows) -> CondensedRegions:
    """List the rows of other clusters that each cluster needs; KernelError if 32-bit positions can't name all entries.

    Reference: MEGA, Algorithm 1 and §V-E; clusters of consecutive ids are the form without partition of §VII.
    """
    if len(rows.indices) > MOST_ENTRIES:
        raise KernelError(f"condensed regions name at most {MOST_ENTRIES} entries, found {len(rows.indices)}; "
                          "use more --parts or --reorder metis")
    return CondensedRegions(*kernels.condensed_regions(
        np.ascontiguousarray(rows.start, np.int64), np.ascontiguousarray(rows.indptr, np.int64),
        np.ascontiguousarray(rows.indices, np.int32)))


def lay_out(arcs: scipy.sparse.csr_matrix, cluster: np.ndarray) -> tuple[np.ndarray, ClusteredRows]:
    """Lay out rows of a CSR by destination by cluster, then number; row i of the layout is row order[i] of `arcs`."""
    order = np.argsort(cluster, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(cluster))]).astype(np.int64)
    return order, ClusteredRows(start, *permute_rows(arcs, order))


def permute_rows(arcs: scipy.sparse.csr_matrix, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """indptr (int64) and indices (int32) of the graph with row order[i] as row i; entries keep their order."""
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order), dtype=np.int32)
    moved = arcs[order]
    return moved.indptr.astype(np.int64), position[moved.indices]


def condensed_order(arcs: scipy.sparse.csr_matrix, cluster: np.ndarray) -> np.ndarray:
    """Order of rows by cluster, (num_rows,) int64; in each cluster, rows that most other clusters read come first."""
    order, rows = lay_out(arcs, cluster)
    regions = condensed_regions(rows)
    reader = np.repeat(np.arange(rows.num_clusters), np.diff(regions.start))
    num_readers = np.bincount(regions.copied_row, minlength=rows.num_rows)
    first_reader = np.full(rows.num_rows, -1)
    first_reader[regions.copied_row[::-1]] = reader[::-1]
    # Rows that other clusters read lie in a few runs at the front of a cluster, as in a condensed region but without
    # copies. Rows with equally many readers are grouped by reader, then by number.
    return order[np.lexsort((first_reader, -num_readers, rows.cluster_of_rows()))]
