"""Importance of boundary nodes: how a node's in-degree ranks among all nodes that cross in an exchange.

No bit-width is chosen here.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.partition.halo import Halo


def node_importance(dataset: GraphDataset, halos: list[Halo]) -> np.ndarray:
    """Rank of the global in-degree among the boundary nodes of all parts, scaled to [0, 1].

    A node of the pool gets the number of pool nodes with a smaller in-degree, over that number of the node with the
    largest one. So equal degrees have equal importance, the smallest degree has 0, the largest 1, and of the nodes
    below the largest degree at most a share 1 - p has an importance of p or more. Where all degrees of the pool are
    equal no node stands out, and all have 0.

    Parameters
    ----------
    halos : what find_halos returns, of all parts; together they name every boundary node

    Returns
    -------
    importance : (num_nodes,) float32, 0 for nodes that no other part needs; memory: 5 bytes a node, 8 bytes a node of
                 the pool and 24 bytes for each degree up to the largest

    Reference: Zhang et al., SYLVIE, §IV-A. The paper leaves the rank of ties open: here it is the lowest of theirs,
    which keeps the wide messages few.
    """
    pool = boundary_nodes(dataset.num_nodes, halos)
    importance = np.zeros(dataset.num_nodes, np.float32)
    if len(pool):
        degree = dataset.indptr[pool + 1] - dataset.indptr[pool]
        count = np.bincount(degree)
        num_below = np.cumsum(count) - count
        importance[pool] = (num_below / max(1, num_below[-1])).astype(np.float32)[degree]
    return importance


def boundary_nodes(num_nodes: int, halos: list[Halo]) -> np.ndarray:
    """Distinct nodes of all halos: the boundary nodes of all parts, (pool_size,) int64 ascending global ids."""
    is_boundary = np.zeros(num_nodes, bool)
    for halo in halos:
        is_boundary[halo.node_id] = True
    return np.flatnonzero(is_boundary)
