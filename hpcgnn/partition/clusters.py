"""Clusters of the whole graph, which steps of a training take a few of. Parts have no say in them, and vice versa."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.options import Progress, silent
from hpcgnn.errors import ConfigError
from hpcgnn.partition.adjacency import symmetric_adjacency
from hpcgnn.partition.metis import metis_parts
from hpcgnn.partition.owner import contiguous_owners

ADVICE = "leave out --cluster-rows"


def cluster_nodes(dataset: GraphDataset, cluster_rows: int, seed: int = 0, scratch: Path | None = None,
                  progress: Progress = silent) -> np.ndarray:
    """Cut a graph into clusters of about `cluster_rows` nodes with few arcs between them, the same for any parts.

    Clusters that METIS splits late have numbers near each other, so clusters of one region are nearly consecutive.

    Parameters
    ----------
    dataset : GraphDataset    a directed graph is taken as undirected; one without arcs is cut into blocks of ids
    cluster_rows : int >= 1
    seed : int                the same seed gives the same clusters
    scratch, progress         see symmetric_adjacency

    Returns
    -------
    cluster : (num_nodes,) int32, from 0 to ceil(num_nodes / cluster_rows) - 1 or less; every number occurs

    Raises
    ------
    ConfigError               fewer rows than one, more nodes or edges than METIS can count, or it gave up
    """
    if cluster_rows < 1:
        raise ConfigError(f"cluster_rows is {cluster_rows}; expected at least 1, or 0 for no clusters")
    num_clusters = -(-dataset.num_nodes // cluster_rows)
    if num_clusters == 1:
        return np.zeros(dataset.num_nodes, np.int32)
    indptr, indices = symmetric_adjacency(dataset, ADVICE, scratch, progress)
    progress("clustering with metis", None)
    if len(indices) == 0:
        return contiguous_owners(dataset.num_nodes, num_clusters)
    return _without_gaps(metis_parts(indptr, indices, num_clusters, "cut", seed, name=dataset.name, advice=ADVICE))


def _without_gaps(cluster: np.ndarray) -> np.ndarray:
    """Number clusters anew in the order that they have: METIS leaves some empty where they are of very few nodes."""
    is_used = np.bincount(cluster) > 0
    return (np.cumsum(is_used, dtype=np.int32) - 1)[cluster]
