"""Orders the inner rows of a part so that neighbors lie close in memory.

The default, "nested", lays out small clusters within larger ones in time linear in the edges: each row joins the
cluster of most of its sources, and whole clusters join larger ones in the same way.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse

from hpcgnn._ext.nesting import propagate_clusters
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import REORDERS
from hpcgnn.partition.condense import condensed_order
from hpcgnn.partition.metis import metis_parts
from hpcgnn.partition.partition import row_blocks

# With 256 float32 columns, these numbers of rows fill a first-level cache, a second-level one and a share of the third.
CAPACITIES = (64, 2048, 65536)
ROUNDS = 3


def nested_order(indptr: np.ndarray, indices: np.ndarray, num_nodes: int, inner_id: np.ndarray) -> np.ndarray:
    """Order rows by clusters of at most 65,536 rows, within them by clusters of at most 2,048, and within these of 64.

    The graph is CSR by destination; sources outside `inner_id`, (num_rows,) int64 ascending, are skipped. Takes 9
    passes over the edges. Returns positions in `inner_id`, (num_rows,) int64; ties ascend.
    """
    num_rows = len(inner_id)
    unit_of_node = np.full(num_nodes, -1, np.int32)
    unit_of, order = np.arange(num_rows, dtype=np.int32), np.arange(num_rows, dtype=np.int32)
    for capacity in CAPACITIES:
        unit_start = np.zeros(int(unit_of.max(initial=-1)) + 2, np.int64)
        np.cumsum(np.bincount(unit_of, minlength=len(unit_start) - 1), out=unit_start[1:])
        num_units = len(unit_start) - 1
        cluster, size = np.arange(num_units, dtype=np.int32), np.diff(unit_start)
        unit_of_node[inner_id] = unit_of
        propagate_clusters(indptr, indices, inner_id, unit_of_node, order, unit_start, cluster, size,
                           np.zeros(num_units, np.int32), np.empty(num_units + 1, np.int32), capacity, ROUNDS)
        # Stable, so rows of a cluster keep the order of the smaller clusters within it.
        moved = np.argsort(cluster[unit_of[order]], kind="stable")
        order = order[moved]
        unit_of = without_gaps(cluster)[unit_of]
    return order.astype(np.int64)


def without_gaps(cluster: np.ndarray) -> np.ndarray:
    """Clusters, (n,) integer, numbered anew in their order, without the numbers that none has, (n,) int32."""
    is_used = np.bincount(cluster, minlength=1) > 0
    return (np.cumsum(is_used, dtype=np.int32) - 1)[cluster]


# With 256 float32 columns, this number of rows fills 2 MiB, the second-level cache of a core or two.
ROWS_A_CLUSTER = 2048
# A quarter of that, so that the cache has room for rows of other clusters too.
ROWS_A_CONDENSED_CLUSTER = 512


def order_rows(dataset: GraphDataset, inner_id: np.ndarray, reorder: str, seed: int = 0) -> np.ndarray:
    """Put the nodes of a part, (num_inner,) int64 ascending, in the order of their rows; ties by ascending id.

    All orders but degree look only at edges inside the part. ConfigError for an unknown order, or if METIS gave up, or
    there are more nodes than 32-bit ids can name.
    """
    if reorder not in REORDERS:
        raise ConfigError(f"unknown order {reorder!r}; choose one of {', '.join(REORDERS)}")
    if reorder == "none" or len(inner_id) == 0:
        return inner_id
    if reorder == "degree":
        return inner_id[np.argsort(dataset.indptr[inner_id] - dataset.indptr[inner_id + 1], kind="stable")]
    if reorder == "nested":
        return inner_id[nested_order(*_checked_rows(dataset), dataset.num_nodes, inner_id)]
    arcs = inner_arcs(dataset, inner_id)
    if reorder == "rcm":
        # The import loads SciPy's own OpenBLAS. Other orders need not wait for this library, which hangs at
        # its start if the address space is too small.
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        return inner_id[reverse_cuthill_mckee(undirected(arcs), symmetric_mode=True)]
    if reorder == "condense-edge":
        return inner_id[condensed_order(arcs, cluster_rows(arcs, ROWS_A_CONDENSED_CLUSTER, seed, dataset.name))]
    return inner_id[np.argsort(cluster_rows(arcs, ROWS_A_CLUSTER, seed, dataset.name), kind="stable")]


def _checked_rows(dataset: GraphDataset) -> tuple[np.ndarray, np.ndarray]:
    if dataset.num_nodes > np.iinfo(np.int32).max:
        raise ConfigError(f"{dataset.name} has {dataset.num_nodes} nodes, and nested clusters number at most "
                          f"{np.iinfo(np.int32).max}; use --reorder degree or none")
    return np.ascontiguousarray(dataset.indptr, np.int64), np.ascontiguousarray(dataset.indices, np.int32)


def cluster_rows(arcs: scipy.sparse.csr_matrix, rows_a_cluster: int, seed: int, name: str) -> np.ndarray:
    """METIS clusters of about `rows_a_cluster` rows, (num_rows,) int32; one cluster if there is no edge."""
    num_clusters = -(-arcs.shape[0] // rows_a_cluster)
    if num_clusters == 1 or arcs.nnz == 0:
        return np.zeros(arcs.shape[0], np.int32)
    graph = undirected(arcs)
    return metis_parts(graph.indptr, graph.indices, num_clusters, "cut", seed, name=name, advice="use --reorder rcm")


def inner_arcs(dataset: GraphDataset, inner_id: np.ndarray) -> scipy.sparse.csr_matrix:
    """Edges between the nodes of a part, (num_inner, num_inner) int8 CSR by destination; row i is inner_id[i]."""
    num_inner = len(inner_id)
    position = np.full(dataset.num_nodes, -1, np.int32)
    position[inner_id] = np.arange(num_inner, dtype=np.int32)
    rows, columns = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for first, degree, sources in row_blocks(dataset, inner_id):
        column = position[sources]
        row = np.repeat(np.arange(first, first + len(degree), dtype=np.int32), degree)
        rows.append(row[column >= 0])
        columns.append(column[column >= 0])
    row, column = np.concatenate(rows), np.concatenate(columns)
    # Entries of parallel edges are joined, as bool, since sums of int8 could end at 0.
    arcs = scipy.sparse.csr_matrix((np.ones(len(row), bool), (row, column)), shape=(num_inner, num_inner))
    return arcs.astype(np.int8)


def undirected(arcs: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """Every edge in both directions, int8 CSR of ones."""
    arcs = arcs.astype(bool)
    return (arcs + arcs.T).astype(np.int8)
