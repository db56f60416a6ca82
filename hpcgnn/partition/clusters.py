"""Cuts the whole graph into clusters: for the steps of a training, and for the batches of inference.

A training step takes a few clusters of the graph, a batch takes `batch_size` consecutive ones. Clusters do not depend
on the parts, so any number of ranks makes the same steps and batches.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import Progress, silent
from hpcgnn.errors import ConfigError
from hpcgnn.partition.kaminpar import kaminpar_parts
from hpcgnn.partition.metis import metis_parts, symmetric_adjacency
from hpcgnn.partition.order import without_gaps
from hpcgnn.partition.owner import contiguous_owners

ADVICE = "use --cluster-rows 0"
FEW_CLUSTERS = 128     # METIS is as quick for them, and needs no process


def cluster_nodes(dataset: GraphDataset, cluster_rows: int, seed: int = 0, scratch: Path | None = None,
                  progress: Progress = silent) -> np.ndarray:
    """Cut a graph into clusters of about `cluster_rows` nodes with few edges between them, (num_nodes,) int32.

    They are numbered from 0 without gaps; clusters of one region have nearly consecutive numbers, since they are split
    late. A directed graph is taken as undirected; one without edges is cut into blocks of ids. METIS cuts small graphs
    and KaMinPar large ones. ConfigError if cluster_rows < 1, or they can't cut the graph.
    """
    if cluster_rows < 1:
        raise ConfigError(f"cluster_rows is {cluster_rows}; expected at least 1, or 0 for no clusters")
    num_clusters = -(-dataset.num_nodes // cluster_rows)
    if num_clusters == 1:
        return np.zeros(dataset.num_nodes, np.int32)
    indptr, indices = symmetric_adjacency(dataset, ADVICE, scratch, progress)
    if len(indices) == 0:
        return contiguous_owners(dataset.num_nodes, num_clusters)
    progress("cutting clusters", None)
    if num_clusters <= FEW_CLUSTERS:
        cluster = metis_parts(indptr, indices, num_clusters, "cut", seed, name=dataset.name, advice=ADVICE)
    else:
        cluster = kaminpar_parts(indptr, indices, num_clusters, seed, name=dataset.name, advice=ADVICE)
    return without_gaps(cluster)


def batch_clusters(indptr: np.ndarray, indices: np.ndarray, num_clusters: int, batch_size: int,
                   name: str = "the graph") -> np.ndarray:
    """Cut a CSR by destination without duplicates into METIS clusters of about equal size, (num_nodes,) int32.

    Some cluster may be empty. Batch b takes `batch_size` clusters from b * batch_size on. ConfigError if there is no
    cluster or no batch, or METIS can't cut the graph.
    """
    if num_clusters < 1 or batch_size < 1:
        raise ConfigError(f"{name} can't be cut into {num_clusters} clusters with {batch_size} per batch; "
                          "both must be 1 or more")
    num_nodes = len(indptr) - 1
    arcs = scipy.sparse.csr_matrix((np.ones(len(indices), np.int8), indices, indptr), shape=(num_nodes, num_nodes))
    both = (arcs + arcs.T).tocsr()
    both.setdiag(0)
    both.eliminate_zeros()
    num_clusters = min(num_clusters, num_nodes)
    if num_clusters < 2 or not both.nnz:
        return np.zeros(num_nodes, np.int32)
    return metis_parts(both.indptr, both.indices, num_clusters, "cut", 0, name=name, advice="ask for fewer clusters")


def arc_groups(cluster: np.ndarray, batch_size: int, keeps_all: bool) -> np.ndarray:
    """Group of each node, (num_nodes,) int32: cluster, or batch with `keeps_all`; edges inside groups are kept."""
    return cluster // batch_size if keeps_all else cluster
