"""Batches of METIS clusters of a graph, and the edges that they keep.

As in QGTC, a batch's adjacency is block-diagonal, one block per cluster: an edge between two clusters is left out even
if both are in one batch. Cluster-GCN keeps those edges, and `keeps_all` does so too. Example: clusters 0, 1, 2, 3 in
batches of two; an edge from cluster 0 to 1 is kept only with `keeps_all`, one from 1 to 2 never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse

from hpcgnn.partition.clusters import arc_groups, batch_clusters


@dataclass(frozen=True)
class Batches:
    """Batches of nodes, one after the other, as one CSR without edges between batches."""

    node_id: np.ndarray    # (num_rows,) int64, number of each row's node in the whole graph
    row_begin: np.ndarray  # (num_batches + 1,) int64, batch b has the rows row_begin[b] .. row_begin[b + 1] - 1
    indptr: np.ndarray     # (num_rows + 1,) int64, row v lists the sources of the edges into v
    indices: np.ndarray    # (num_entries,) int32, rows, ascending within a row

    @property
    def num_batches(self) -> int:
        return len(self.row_begin) - 1

    @property
    def num_rows(self) -> int:
        return len(self.node_id)

    @property
    def in_degree(self) -> np.ndarray:
        return np.diff(self.indptr)

    def adjacency(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        first, end = self.row_begin[batch], self.row_begin[batch + 1]
        indptr = self.indptr[first:end + 1]
        return indptr - indptr[0], self.indices[indptr[0]:indptr[-1]] - np.int32(first)

    def joined(self) -> Batches:
        return replace(self, row_begin=np.array([0, self.num_rows], np.int64))

    def chosen(self, batches: np.ndarray) -> Batches:
        counts = np.diff(self.row_begin)[batches]
        row_begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = _ranges(self.row_begin[batches], counts)
        degree = self.in_degree[rows]
        indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
        moved = np.repeat(row_begin[:-1] - self.row_begin[batches], counts)
        indices = self.indices[_ranges(self.indptr[rows], degree)] + np.repeat(moved, degree)
        return Batches(self.node_id[rows], row_begin, indptr, indices.astype(np.int32))


def runs_of_batches(row_begin: np.ndarray, most_rows: int) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(row_begin) - 1:
        end = max(first + 1, int(np.searchsorted(row_begin, row_begin[first] + most_rows, "right")) - 1)
        yield first, end
        first = end


def cut_batches(indptr: np.ndarray, indices: np.ndarray, num_clusters: int, batch_size: int, *, keeps_all: bool = False,
                name: str = "the graph") -> Batches:
    """Cut a graph into METIS clusters of about equally many nodes, `batch_size` neighboring clusters per batch.

    The CSR is by destination, without duplicate edges; keeps_all keeps edges between clusters of one batch; messages
    use `name`. Raises ConfigError for no cluster, no batch, or a graph that METIS can't cut.

    Reference: QGTC, Section 4.1; Chiang et al., KDD 2019, Section 3.2, for `keeps_all`.
    """
    cluster = batch_clusters(indptr, indices, num_clusters, batch_size, name)
    batch, group, num_nodes = cluster // batch_size, arc_groups(cluster, batch_size, keeps_all), len(cluster)
    target = np.repeat(np.arange(num_nodes), np.diff(indptr))
    is_kept = group[target] == group[indices]
    order = np.argsort(cluster, kind="stable")
    row_of = np.empty(num_nodes, np.int64)
    row_of[order] = np.arange(num_nodes)
    kept = scipy.sparse.csr_matrix((np.ones(int(is_kept.sum()), np.int8), (row_of[target[is_kept]],
                                    row_of[np.asarray(indices)[is_kept]])), shape=(num_nodes, num_nodes))
    kept.sort_indices()
    ends = np.flatnonzero(np.diff(batch[order], append=-1)) + 1
    return Batches(order.astype(np.int64), np.concatenate([[0], ends]).astype(np.int64),
                   kept.indptr.astype(np.int64), kept.indices.astype(np.int32))


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    # Concatenate the ranges.
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - counts), counts)
