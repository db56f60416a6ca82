"""Subgraphs of a graph by METIS, kept for all designs and layers that ask for the same ones."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from hpcgnn.accelerators.schedule import block_starts
from hpcgnn.errors import ConfigError
from hpcgnn.partition.condense import ClusteredRows, lay_out
from hpcgnn.partition.order import cluster_rows

MOST_KEPT = 16


@dataclass(frozen=True)
class Subgraphs:
    """A graph with its nodes laid out subgraph after subgraph."""

    order: np.ndarray      # (num_nodes,) int64, row i of the layout is node order[i]
    rows: ClusteredRows    # edges by destination, both ends in rows of the layout, a row's edges in the graph's order


# The cluster of each node, (num_nodes,) int32, by graph and rows per subgraph, so that METIS runs once. The least
# recently used entry leaves first; entries have no edges, so that a large graph is in memory once.
KEPT: OrderedDict[tuple, np.ndarray] = OrderedDict()


def _clusters(arcs: scipy.sparse.csr_matrix, rows_a_subgraph: int, seed: int) -> np.ndarray:
    key = (_fingerprint(arcs.indptr), _fingerprint(arcs.indices), rows_a_subgraph, seed)
    if key not in KEPT:
        KEPT[key] = cluster_rows(arcs, rows_a_subgraph, seed, "the graph")
        if len(KEPT) > MOST_KEPT:
            KEPT.popitem(last=False)
    KEPT.move_to_end(key)
    return KEPT[key]


def subgraphs_of(indptr: np.ndarray, indices: np.ndarray, rows_a_subgraph: int, seed: int = 0) -> Subgraphs:
    """Cut a graph into subgraphs of about `rows_a_subgraph` rows, as `jobs/measurements/dram.py` does for its schemes.

    `indptr` and `indices` hold edges by destination. METIS makes some subgraphs larger. There is one subgraph if the
    graph has no more rows than that, or no edge. Raises ConfigError for subgraphs of no row, or if METIS gave up.

    Reference: MEGA, §V-E, and GROW, §V, cut their graphs this way.
    """
    _check(rows_a_subgraph)
    arcs = arcs_of(indptr, indices)
    return Subgraphs(*lay_out(arcs, _clusters(arcs, rows_a_subgraph, seed)))


def blocks_of(indptr: np.ndarray, indices: np.ndarray, rows_a_subgraph: int) -> Subgraphs:
    """Cut a graph into blocks of consecutive ids; errors as in `subgraphs_of`. Reference: MEGA, §VII-2."""
    _check(rows_a_subgraph)
    num_nodes = len(indptr) - 1
    return Subgraphs(np.arange(num_nodes), ClusteredRows(
        block_starts(num_nodes, rows_a_subgraph), np.ascontiguousarray(indptr, np.int64),
        np.ascontiguousarray(indices, np.int32)))


def _check(rows_a_subgraph: int) -> None:
    if rows_a_subgraph < 1:
        raise ConfigError(f"a subgraph has {rows_a_subgraph} rows; expected at least one: choose larger buffers")


def arcs_of(indptr: np.ndarray, indices: np.ndarray) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix((np.ones(len(indices), np.int8), indices, indptr),
                                   shape=(len(indptr) - 1, len(indptr) - 1))


def _fingerprint(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array), digest_size=16).digest()
