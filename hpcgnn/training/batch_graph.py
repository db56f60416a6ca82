"""Training on the edges that `hpcgnn infer --clusters` reads: edges within METIS clusters, or within batches of them.

Rank 0 gathers all edges, cuts the graph as inference does, and tells each rank the group (cluster or batch) of each of
its rows. A rank then removes every edge between two groups, and every halo row that no remaining edge reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
from mpi4py import MPI

from hpcgnn.config import CLUSTERS_A_BATCH
from hpcgnn.errors import ConfigError
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import halo_values, tell_owners
from hpcgnn.partition.partition import Partition
from hpcgnn.run.launch import together

NAMES = ("clusters", "batch_size", "between_clusters")
INTEGERS_REFUSE_TYPES = ("models of integers take no relations and attributes of edges, and this graph has some; train "
                         "a model of floats, or preprocess the graph without them, by relation=none and "
                         "edge_features=none")


@dataclass(frozen=True)
class ClusterCut:
    """Which edges batches keep, as settings of a run or flags of `hpcgnn infer`; ConfigError for wrong values."""

    clusters: int      # numbers of clusters of the whole graph, and clusters per batch
    batch_size: int = CLUSTERS_A_BATCH
    between_clusters: bool = False      # keep edges between clusters of one batch

    def __post_init__(self):
        counts = (self.clusters, self.batch_size)
        if not all(type(count) is int and count >= 1 for count in counts) or type(self.between_clusters) is not bool:
            raise ConfigError(f"{self} is no cut of a graph; clusters and batch_size must be 1 or more")

    @classmethod
    def of(cls, settings: dict[str, Any]) -> ClusterCut | None:
        """The cut that a run with these settings was trained in; None for the whole graph."""
        return cls(**{name: settings[name] for name in NAMES}) if settings.get("clusters") else None

    @property
    def flags(self) -> str:
        """Flags of `hpcgnn infer` that read the same edges."""
        words = [f"--clusters {self.clusters}"]
        if self.between_clusters:
            words += [f"--set batch_size={self.batch_size}"] if self.batch_size != CLUSTERS_A_BATCH else []
            words += ["--set between_clusters=true"]
        return " ".join(words)

    def remark(self, source: str, answered: ClusterCut | None) -> str | None:
        """A sentence if the model called `source` predicts from other edges than it was trained on, else None."""
        # Without edges between clusters, the batch size changes no edge.
        if answered is not None and answered.flags == self.flags:
            return None
        here = "the whole graph" if answered is None else f"other edges ({answered.flags})"
        return (f"{source} was trained in {self.clusters} clusters and predicts here from {here}; with {self.flags} "
                "it predicts as it was trained")


@dataclass(frozen=True)
class Degrees:
    """In-degrees in the whole graph, looked up by node."""

    node_id: np.ndarray      # (num_rows,) int64, ascending
    in_degree: np.ndarray      # (num_rows,) int32

    @classmethod
    def of_part(cls, part: Partition) -> Degrees:
        node_id = part.node_id
        order = np.argsort(node_id)
        return cls(node_id[order], part.in_degree[order])

    def of(self, node_id: np.ndarray) -> np.ndarray:
        return self.in_degree[np.searchsorted(self.node_id, node_id)]


def gather_arcs(comm: MPI.Comm, part: Partition) -> tuple[np.ndarray, np.ndarray] | None:
    """Collective: the whole graph on rank 0, None on other ranks.

    Returns CSR by destination: indptr (num_nodes + 1,) int64 and indices (num_edges,) int32. Sources are ascending, so
    the graph does not depend on the partition.
    """
    node_id = part.node_id
    arcs = comm.gather((part.inner_id, np.diff(part.indptr), node_id[part.indices]))
    if arcs is None:
        return None
    target = np.concatenate([np.repeat(ids, degree) for ids, degree, _ in arcs])
    source = np.concatenate([ids for _, _, ids in arcs])
    shape = part.num_nodes_global, part.num_nodes_global
    whole = scipy.sparse.csr_matrix((np.ones(len(source), np.int8), (target, source)), shape=shape)
    whole.sort_indices()
    return whole.indptr.astype(np.int64), whole.indices


def within_batches(comm: MPI.Comm, part: Partition, num_clusters: int, batch_size: int, keeps_all: bool) -> Partition:
    """Collective: remove the edges that inference in batches cuts, and the halo rows that no edge reads any more.

    The clusters are as in `hpcgnn.lowbit.inference.batches.cut_batches`. A batch has `batch_size` clusters;
    `keeps_all` keeps the edges between clusters of one batch. The result has the in-degrees within batches; all its
    rows are marginal. Inner rows keep their order.

    Raises CollectiveError: edges have weights, relations or attributes, which batches do not read, or rank 0 can't cut
    the graph.
    """
    together(comm, lambda: _refuse_weights(part))
    group = _groups_of_rows(comm, part, num_clusters, batch_size, keeps_all)
    # Keep the edges within a group.
    target = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
    is_kept = group[target] == group[part.indices]
    degree = np.bincount(target[is_kept], minlength=part.num_inner).astype(np.int32)
    indices = part.indices[is_kept]
    # Keep all inner rows, and the halo rows that some edge still reads; they move up to close the gaps.
    is_read = np.zeros(part.num_inner + part.num_halo, bool)
    is_read[indices] = True
    is_read[:part.num_inner] = True
    new_row = (np.cumsum(is_read) - 1).astype(np.int32)
    # Owners learn which of their boundary rows are still read, and send the new degrees of these rows.
    plan, reads_halo = ExchangePlan.build(part), is_read[part.num_inner:]
    sent = _sent(comm, plan, part, reads_halo)
    halo_degree = halo_values(comm, plan, degree)[reads_halo]
    boundary = part.boundary_index[sent]
    importance = part.importance[is_read]
    # A row that nobody receives has no importance.
    importance[:part.num_inner][np.bincount(boundary, minlength=part.num_inner) == 0] = 0
    return replace(
        part, num_central=0, halo_id=part.halo_id[reads_halo], halo_offset=_offset_of(part.halo_offset, reads_halo),
        boundary_index=boundary, boundary_offset=_offset_of(part.boundary_offset, sent),
        indptr=np.concatenate([[0], np.cumsum(degree)]).astype(np.int64), indices=new_row[indices],
        in_degree=np.concatenate([degree, halo_degree]), importance=importance)


def _refuse_weights(part: Partition) -> None:
    if part.edge_weight is not None:
        raise ConfigError("hpcgnn infer computes in batches without edge weights, and this graph has them; leave "
                          "clusters out, or preprocess the graph without weights")
    if part.has_typed_edges:
        raise ConfigError("hpcgnn infer computes in batches without relations and attributes of edges, and this graph "
                          "has some; leave clusters out, or preprocess the graph without them")


def _groups_of_rows(comm: MPI.Comm, part: Partition, num_clusters: int, batch_size: int,
                    keeps_all: bool) -> np.ndarray:
    """Collective: the group of each row, (num_inner + num_halo,) int32; see `arc_groups`."""
    from hpcgnn.partition.clusters import arc_groups, batch_clusters  # only for these runs

    arcs = gather_arcs(comm, part)
    group = together(comm, lambda: None if arcs is None else arc_groups(
        batch_clusters(*arcs, num_clusters, batch_size), batch_size, keeps_all))
    known = comm.gather(part.node_id)
    return comm.scatter(None if known is None else [group[node_id] for node_id in known])


def _sent(comm: MPI.Comm, plan: ExchangePlan, part: Partition, reads_halo: np.ndarray) -> np.ndarray:
    """Collective: which rows of the boundary lists are still read by their receivers, (num_sent,) bool."""
    sent = np.zeros(len(part.boundary_index), bool)
    for peer, told in zip(plan.peers, tell_owners(comm, plan, reads_halo.astype(np.uint8)), strict=True):
        sent[part.boundary_offset[peer]:part.boundary_offset[peer + 1]] = told
    return sent


def _offset_of(offset: np.ndarray, is_kept: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(is_kept)])[offset].astype(np.int64)
