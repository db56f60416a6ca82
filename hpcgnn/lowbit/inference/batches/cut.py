"""ClusterCut: the batches of clusters that a graph is cut into, as settings of a run or flags of infer.

Batches: METIS clusters of a graph, several a batch, with the arcs that a batch keeps. No rank is known here.

A batch's adjacency is block-diagonal, one block a cluster, as in QGTC: an arc between two clusters is left out even
where both are in one batch. Cluster-GCN keeps those; `keeps_all` does so too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.config import CLUSTERS_A_BATCH
from hpcgnn.errors import ConfigError
from hpcgnn.partition.clusters import arc_groups, batch_clusters

NAMES = ("clusters", "batch_size", "between_clusters")


@dataclass(frozen=True)
class ClusterCut:
    """Hold what decides which arcs batches keep.

    Attributes
    ----------
    clusters, batch_size : int       of the whole graph, and of a batch
    between_clusters : bool          arcs between clusters of one batch are kept

    Raises
    ------
    ConfigError      numbers below 1, or another type
    """

    clusters: int
    batch_size: int = CLUSTERS_A_BATCH
    between_clusters: bool = False

    def __post_init__(self):
        counts = (self.clusters, self.batch_size)
        if not all(type(count) is int and count >= 1 for count in counts) or type(self.between_clusters) is not bool:
            raise ConfigError(f"{self} is no cut of a graph; clusters and batch_size must be 1 or more")

    @classmethod
    def of(cls, settings: dict[str, Any]) -> ClusterCut | None:
        """Return the cut that a run was trained in, None where that was the whole graph.

        Parameters
        ----------
        settings : dict      of a run, by name; those of an earlier version name no clusters
        """
        return cls(**{name: settings[name] for name in NAMES}) if settings.get("clusters") else None

    @property
    def flags(self) -> str:
        """Return the flags of `hpcgnn infer` that answer from the same arcs."""
        words = [f"--clusters {self.clusters}"]
        if self.between_clusters:
            words += [f"--batch-size {self.batch_size}"] if self.batch_size != CLUSTERS_A_BATCH else []
            words += ["--between-clusters"]
        return " ".join(words)

    def remark(self, source: str, answered: ClusterCut | None) -> str | None:
        """Return a sentence where a model answers from other arcs than it was trained on, else None.

        Parameters
        ----------
        source : str                         the model, as users call it
        answered : ClusterCut or None        None is the whole graph
        """
        # Without arcs between clusters, a batch's size changes no arc.
        if answered is not None and answered.flags == self.flags:
            return None
        here = "the whole graph" if answered is None else f"other arcs, those of {answered.flags}"
        return (f"{source} was trained in {self.clusters} clusters and answers here from {here}; {self.flags} answers "
                "as it was trained")


@dataclass(frozen=True)
class Batches:
    """Batches of nodes, one after the other, as one CSR without arcs between batches.

    Attributes
    ----------
    node_id : (num_rows,) int64             of each row, in the whole graph
    row_begin : (num_batches + 1,) int64    batch b has the rows row_begin[b] .. row_begin[b + 1] - 1
    indptr : (num_rows + 1,) int64          row v lists the sources of the arcs into v
    indices : (num_entries,) int32          rows, ascending within a row
    """

    node_id: np.ndarray
    row_begin: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_batches(self) -> int:
        return len(self.row_begin) - 1

    @property
    def num_rows(self) -> int:
        return len(self.node_id)

    @property
    def in_degree(self) -> np.ndarray:
        """Count the in-degree of each row within its batch, (num_rows,) int64."""
        return np.diff(self.indptr)

    def adjacency(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (indptr, indices) of one batch, whose rows count from 0."""
        first, end = self.row_begin[batch], self.row_begin[batch + 1]
        indptr = self.indptr[first:end + 1]
        return indptr - indptr[0], self.indices[indptr[0]:indptr[-1]] - np.int32(first)

    def joined(self) -> Batches:
        """Join the same rows and arcs to one batch."""
        return replace(self, row_begin=np.array([0, self.num_rows], np.int64))

    def chosen(self, batches: np.ndarray) -> Batches:
        """Return some of the batches, in that order."""
        counts = np.diff(self.row_begin)[batches]
        row_begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = _ranges(self.row_begin[batches], counts)
        degree = self.in_degree[rows]
        indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
        moved = np.repeat(row_begin[:-1] - self.row_begin[batches], counts)
        indices = self.indices[_ranges(self.indptr[rows], degree)] + np.repeat(moved, degree)
        return Batches(self.node_id[rows], row_begin, indptr, indices.astype(np.int32))


def runs_of_batches(row_begin: np.ndarray, most_rows: int) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of runs of batches, in order, of at most so many rows together, or of one batch."""
    first = 0
    while first < len(row_begin) - 1:
        end = max(first + 1, int(np.searchsorted(row_begin, row_begin[first] + most_rows, "right")) - 1)
        yield first, end
        first = end


def cut_batches(indptr: np.ndarray, indices: np.ndarray, num_clusters: int, batch_size: int, *, keeps_all: bool = False,
                name: str = "the graph") -> Batches:
    """Cut a graph into METIS clusters of about equally many nodes, and take `batch_size` neighboring ones a batch.

    Parameters
    ----------
    indptr : (num_nodes + 1,) int64, indices : (num_edges,) integer      CSR by destination, no arc twice
    num_clusters, batch_size : int       clusters of the graph, and clusters a batch
    keeps_all : bool                     keep the arcs between clusters of one batch
    name : str                           of the graph, for messages

    Raises
    ------
    ConfigError      no cluster, no batch, or a graph that METIS can't cut

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
    """start, start + 1 .. start + count - 1 of each, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - counts), counts)
