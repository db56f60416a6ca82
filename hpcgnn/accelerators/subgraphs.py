"""Subgraphs of a graph by METIS, kept for all designs and layers that ask for the same ones."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from hpcgnn.errors import ConfigError
from hpcgnn.partition.condense import ClusteredRows, lay_out
from hpcgnn.partition.order import cluster_rows

MOST_KEPT = 16


@dataclass(frozen=True)
class Subgraphs:
    """A graph with its nodes laid out subgraph after subgraph."""

    order: np.ndarray      # (num_nodes,) int64, row i of the layout is node order[i]
    rows: ClusteredRows    # edges by destination, both ends in rows of the layout, a row's edges in the graph's order


class KeptClusters:
    """The cluster of each node, by graph and rows per subgraph; the least recently used entry leaves first.

    An entry is (num_nodes,) int32, without edges, so that a large graph is in memory once.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self.most = most
        self._kept: OrderedDict[tuple, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def clusters(self, arcs: scipy.sparse.csr_matrix, rows_a_subgraph: int, seed: int) -> np.ndarray:
        """Cluster of each node, (num_nodes,) int32; METIS runs the first time."""
        key = (_fingerprint(arcs.indptr), _fingerprint(arcs.indices), rows_a_subgraph, seed)
        if key not in self._kept:
            self._kept[key] = cluster_rows(arcs, rows_a_subgraph, seed, "the graph")
            if len(self._kept) > self.most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


KEPT = KeptClusters()


def subgraphs_of(indptr: np.ndarray, indices: np.ndarray, rows_a_subgraph: int, seed: int = 0,
                 kept: KeptClusters = KEPT) -> Subgraphs:
    """Cut a graph into subgraphs of about `rows_a_subgraph` rows, as `jobs/measurements/dram.py` does for its schemes.

    `indptr` and `indices` hold edges by destination. METIS makes some subgraphs larger. There is one subgraph if the
    graph has no more rows than that, or no edge. Raises ConfigError for subgraphs of no row, or if METIS gave up.

    Reference: MEGA, §V-E, and GROW, §V, cut their graphs this way.
    """
    if rows_a_subgraph < 1:
        raise ConfigError(f"a subgraph has {rows_a_subgraph} rows; expected at least one: choose larger buffers")
    arcs = arcs_of(indptr, indices)
    order, rows = lay_out(arcs, kept.clusters(arcs, rows_a_subgraph, seed))
    return Subgraphs(order, rows)


def blocks_of(indptr: np.ndarray, indices: np.ndarray, rows_a_subgraph: int) -> Subgraphs:
    """Cut a graph into blocks of consecutive ids; errors as in `subgraphs_of`. Reference: MEGA, §VII-2."""
    if rows_a_subgraph < 1:
        raise ConfigError(f"a subgraph has {rows_a_subgraph} rows; expected at least one: choose larger buffers")
    num_nodes = len(indptr) - 1
    start = np.append(np.arange(0, num_nodes, rows_a_subgraph), num_nodes).astype(np.int64)
    return Subgraphs(np.arange(num_nodes), ClusteredRows(start, np.ascontiguousarray(indptr, np.int64),
                                                         np.ascontiguousarray(indices, np.int32)))


def arcs_of(indptr: np.ndarray, indices: np.ndarray) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix((np.ones(len(indices), np.int8), indices, indptr),
                                   shape=(len(indptr) - 1, len(indptr) - 1))


def _fingerprint(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array), digest_size=16).digest()
