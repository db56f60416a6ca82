"""The undirected neighbor lists that a partitioner works on. They serve to choose owners and clusters; training keeps
the arcs.

No partitioner is called here.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse

from hpcgnn._ext import partition as kernels
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.errors import ConfigError

MAX_NODES = np.iinfo(np.int32).max


def symmetric_adjacency(dataset: GraphDataset, advice: str = "use --partitioner contiguous or random",
                        ) -> tuple[np.ndarray, np.ndarray]:
    """Return neighbor lists of the graph with every arc taken in both directions.

    Returns
    -------
    indptr : (num_nodes + 1,) int64
    indices : (num_neighbors,) int32, ascending within a row; the dataset's own arrays where it is symmetric already

    Raises
    ------
    ConfigError               the graph has more nodes than 32-bit ids can name
    """
    if dataset.num_nodes > MAX_NODES:
        raise ConfigError(f"{dataset.name} has {dataset.num_nodes} nodes, metis and ldg take at most {MAX_NODES}; "
                          f"{advice}")
    indptr = np.ascontiguousarray(dataset.indptr, dtype=np.int64)
    indices = np.ascontiguousarray(dataset.indices, dtype=np.int32)
    if kernels.has_symmetric_rows(indptr, indices, np.empty(dataset.num_nodes, np.int64)):
        return indptr, indices
    return _union_with_reverse(indptr, indices)


def _union_with_reverse(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    num_nodes = len(indptr) - 1
    arcs = scipy.sparse.csr_matrix((np.ones(len(indices), np.int8), indices, indptr), shape=(num_nodes, num_nodes))
    both = (arcs + arcs.T).tocsr()
    both.sort_indices()
    return both.indptr.astype(np.int64, copy=False), both.indices.astype(np.int32, copy=False)
