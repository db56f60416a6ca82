"""Clusters of the batches that a graph is answered in, and which arcs the batches keep. No rank is known here.

Training reads the same arcs from here as inference in batches.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse

from hpcgnn.errors import ConfigError
from hpcgnn.partition.metis import metis_parts


def batch_clusters(indptr: np.ndarray, indices: np.ndarray, num_clusters: int, batch_size: int,
                   name: str = "the graph") -> np.ndarray:
    """Cut a graph into METIS clusters of about equally many nodes. Batch b has the clusters b * batch_size and on.

    Parameters
    ----------
    indptr : (num_nodes + 1,) int64, indices : (num_edges,) integer      CSR by destination, no arc twice
    num_clusters, batch_size : int       clusters of the graph, and clusters a batch
    name : str                           of the graph, for messages

    Returns
    -------
    cluster : (num_nodes,) int32; some cluster may be empty

    Raises
    ------
    ConfigError      no cluster, no batch, or a graph that METIS can't cut
    """
    if num_clusters < 1 or batch_size < 1:
        raise ConfigError(f"{name} can't be cut into {num_clusters} clusters with {batch_size} a batch; "
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
    """Return the group of each node, (num_nodes,) int32: batches keep an arc where both its ends are in one group.

    Parameters
    ----------
    cluster : (num_nodes,) int32, what `batch_clusters` returns
    keeps_all : bool         keep the arcs between clusters of one batch
    """
    return cluster // batch_size if keeps_all else cluster
