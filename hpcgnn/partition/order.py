"""The order of a part's inner rows, so that neighbors lie close in memory. Central rows are not told apart here."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import REORDERS
from hpcgnn.partition.condense import condensed_order
from hpcgnn.partition.halo import row_blocks
from hpcgnn.partition.metis import metis_parts
from hpcgnn.partition.nesting import nested_order

# 256 float32 columns of so many rows fill 2 MiB, the second-level cache of a core or two.
ROWS_A_CLUSTER = 2048
# A quarter of that, so that rows which a cluster needs of others find room beside its own.
ROWS_A_CONDENSED_CLUSTER = 512


def order_rows(dataset: GraphDataset, inner_id: np.ndarray, reorder: str, seed: int = 0) -> np.ndarray:
    """Return the nodes of a part in the order that their rows will have.

    Parameters
    ----------
    dataset                   its name, num_nodes, indptr and indices are read
    inner_id : (num_inner,) int64, ascending
    reorder : {"none", "nested", "metis", "degree", "rcm", "condense-edge"}
        none keeps the order of the source; nested lays out clusters within clusters, see nested_order; metis lays out
        clusters of about 2048 rows one after the other; degree puts rows with many in-neighbors first; rcm is reverse
        Cuthill-McKee; condense-edge lays out clusters of about 512 rows, in each those first that most other clusters
        read. All but degree look at the arcs inside the part
    seed : int                of metis; the same seed gives the same order

    Returns
    -------
    inner_id : (num_inner,) int64, permuted; ties by ascending id

    Raises
    ------
    ConfigError               an unknown order, METIS gave up, or more nodes than 32-bit ids can name
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
        # It brings SciPy's own OpenBLAS, which other orders need not wait for, and which never ends its start where an
        # address space is too small for it.
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        return inner_id[reverse_cuthill_mckee(undirected(arcs), symmetric_mode=True)]
    if reorder == "condense-edge":
        return inner_id[condensed_order(arcs, cluster_rows(arcs, ROWS_A_CONDENSED_CLUSTER, seed, dataset.name))]
    return inner_id[np.argsort(cluster_rows(arcs, ROWS_A_CLUSTER, seed, dataset.name), kind="stable")]


def _checked_rows(dataset: GraphDataset) -> tuple[np.ndarray, np.ndarray]:
    """Return indptr (int64) and indices (int32), the dataset's own arrays where they are of these types."""
    if dataset.num_nodes > np.iinfo(np.int32).max:
        raise ConfigError(f"{dataset.name} has {dataset.num_nodes} nodes, and nested clusters number at most "
                          f"{np.iinfo(np.int32).max}; use --reorder degree or none")
    return np.ascontiguousarray(dataset.indptr, np.int64), np.ascontiguousarray(dataset.indices, np.int32)


def cluster_rows(arcs: scipy.sparse.csr_matrix, rows_a_cluster: int, seed: int, name: str) -> np.ndarray:
    """Return METIS clusters of about equally many rows, (num_rows,) int32; one cluster where a graph has no arc.

    Raises
    ------
    ConfigError               METIS gave up
    """
    num_clusters = -(-arcs.shape[0] // rows_a_cluster)
    if num_clusters == 1 or arcs.nnz == 0:
        return np.zeros(arcs.shape[0], np.int32)
    graph = undirected(arcs)
    return metis_parts(graph.indptr, graph.indices, num_clusters, "cut", seed, name=name, advice="use --reorder rcm")


def inner_arcs(dataset: GraphDataset, inner_id: np.ndarray) -> scipy.sparse.csr_matrix:
    """Return the arcs between the nodes of a part.

    Returns
    -------
    arcs : (num_inner, num_inner) int8 CSR of ones by destination; node i of it is inner_id[i]
    """
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
    return scipy.sparse.csr_matrix((np.ones(len(row), np.int8), (row, column)), shape=(num_inner, num_inner))


def undirected(arcs: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """Return every arc in both directions, int8 CSR of ones."""
    return (arcs + arcs.T).astype(bool).astype(np.int8)
