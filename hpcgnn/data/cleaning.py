"""Makes a clean CSR graph from a list of edges, with their weights, and reports what was found and done.

Self-loops and duplicates are removed; the weights of duplicates are added.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse

from hpcgnn._ext import partition as kernels
from hpcgnn.data.arcs import INT32_NODES, Ends, chunks, sort_arcs
from hpcgnn.data.dataset import CleaningReport
from hpcgnn.data.options import Progress, check_memory, silent
from hpcgnn.errors import DatasetError

Remarks = tuple[str, ...]


def check_weights(weight: np.ndarray | None, source: np.ndarray, target: np.ndarray, name: str) -> tuple[bool, Remarks]:
    """Check edge weights, which must be positive: GCN divides by the root of their sums.

    Returns
    -------
    is_weighted : bool        False without weights, or if all are 1
    remarks : tuple of str    for the cleaning report
    """
    if weight is None:
        return False, ()
    if weight.ndim != 1 or len(weight) != len(source) or weight.dtype.kind not in "iufb":
        raise DatasetError(f"{name} has edge weights of {weight.dtype} and shape {weight.shape}; expected a number for "
                           f"each of {len(source)} edges")
    with np.errstate(over="ignore"):
        as_stored = weight.astype(np.float32)
    is_bad = ~(np.isfinite(as_stored) & (as_stored > 0))
    if is_bad.any():
        place = int(np.argmax(is_bad))
        raise DatasetError(f"{name} has an edge of weight {weight[place]} from node {source[place]} to "
                           f"{target[place]}; expected positive, finite weights: leave out such edges, or all weights "
                           "by weight=none (edge_weight=False in Python)")
    if (as_stored == 1).all():
        return False, ("all edges weigh 1, so weights were left out",)
    return True, ()


BYTES_A_NODE = 24     # at least: offsets of the graph and its reverse, and a label


class CleanGraph(NamedTuple):
    """Edges without loops and duplicates, as CSR by destination, and what cleaning found."""

    indptr: np.ndarray      # (num_nodes + 1,) int64
    indices: np.ndarray      # (num_edges,) int32, int64 from 2**31 nodes on; ascending within a row
    report: CleaningReport
    edge_weight: np.ndarray | None = None      # (num_edges,) float32
    edge_type: np.ndarray | None = None      # (num_edges,) int32
    edge_attr: np.ndarray | None = None      # (num_edges, num_edge_features) float32

    def with_remarks(self, remarks: Remarks) -> CleanGraph:
        return self._replace(report=replace(self.report, remarks=self.report.remarks + remarks))


def build_csr(source: Ends, target: Ends, num_nodes: int, symmetrize: bool, name: str, progress: Progress = silent,
              scratch: Path | None = None, weight: np.ndarray | None = None) -> CleanGraph:
    """Remove self-loops and duplicates from the edges source -> target and sort them by destination.

    Weights of duplicates are added; an added reverse gets its edge's weight. Weights that are all 1 are left out.

    Parameters
    ----------
    source, target : (num_source_edges,) integer    node ids in 0..num_nodes - 1; read in chunks
    symmetrize : bool                               add the reverse of every edge that lacks it
    name : str                                      name of the dataset, for messages
    scratch : Path or None                          folder for edges that are sorted, see sort_arcs
    weight : (num_source_edges,) number             positive and finite; or None
    """
    if num_nodes < 1:
        raise DatasetError(f"{name} has no nodes; expected at least one")
    check_memory(name, f"{num_nodes:,} nodes", num_nodes * BYTES_A_NODE)
    for ends in (source, target):
        _check_ends(ends, num_nodes, name)
    if weight is not None:
        source, target = (np.asarray(ends) for ends in (source, target))
    is_weighted, remarks = check_weights(weight, source, target, name)
    if is_weighted or num_nodes >= INT32_NODES:
        progress("cleaning edges", None)
        return _clean_by_scipy(source, target, weight if is_weighted else None, num_nodes, symmetrize, remarks)
    task = progress("cleaning edges", 2 * len(source))
    arcs = sort_arcs(source, target, num_nodes, symmetrize, scratch, task)
    is_symmetric = symmetrize or kernels.has_symmetric_rows(arcs.indptr, arcs.indices, np.empty(num_nodes, np.int64))
    report = _report(len(source), arcs.num_loops, arcs.num_unique, arcs.indptr, arcs.indices, is_symmetric, remarks)
    return CleanGraph(arcs.indptr, arcs.indices, report)


def _clean_by_scipy(source: Ends, target: Ends, weight: np.ndarray | None, num_nodes: int, symmetrize: bool,
                    remarks: Remarks) -> CleanGraph:
    source, target = (np.asarray(ends) for ends in (source, target))     # from 2^31 nodes on, the ends may be in a file
    matrix, num_loops = _merged(source, target, weight, num_nodes)
    num_unique = matrix.nnz
    if weight is not None and num_unique < len(source) - num_loops:
        remarks += ("weights of duplicate edges were added",)
    matrix, is_symmetric = _with_reverse(matrix, symmetrize)
    indptr = matrix.indptr.astype(np.int64, copy=False)
    indices = matrix.indices.astype(np.int32 if num_nodes < INT32_NODES else np.int64, copy=False)
    report = _report(len(source), num_loops, num_unique, indptr, indices, is_symmetric, remarks)
    return CleanGraph(indptr, indices, report, None if weight is None else matrix.data.astype(np.float32))


def _report(num_source_edges: int, num_loops: int, num_unique: int, indptr: np.ndarray, indices: np.ndarray,
            is_symmetric: bool, remarks: tuple[str, ...]) -> CleaningReport:
    return CleaningReport(
        source_edges=num_source_edges, duplicate_edges_removed=num_source_edges - num_loops - num_unique,
        self_loops_removed=num_loops, reverse_edges_added=len(indices) - num_unique,
        isolated_nodes=_num_isolated(indptr, indices), is_symmetric=is_symmetric, remarks=remarks)


def _check_ends(ends: Ends, num_nodes: int, name: str) -> None:
    if ends.dtype.kind not in "iu":
        raise DatasetError(f"{name} has edge ends of type {ends.dtype}; expected integers")
    parts = [(int(part.min()), int(part.max())) for part, _ in chunks(ends, ends)]
    if not parts:
        return
    low, high = min(low for low, _ in parts), max(high for _, high in parts)
    if low < 0 or high >= num_nodes:
        bad = low if low < 0 else high
        raise DatasetError(f"{name} has an edge to node {bad}, which does not exist; "
                           f"node ids run from 0 to {num_nodes - 1}")


def _merged(source: np.ndarray, target: np.ndarray, weight: np.ndarray | None,
            num_nodes: int) -> tuple[scipy.sparse.csr_matrix, int]:
    # Returns the edges without loops, each once, as a CSR of weights (1 if there are none), and the number of loops.
    source, target = (ends.astype(np.int64) if ends.dtype.kind == "u" else ends for ends in (source, target))
    keep = source != target
    num_loops = len(keep) - int(np.count_nonzero(keep))
    if num_loops:
        source, target = source[keep], target[keep]
        weight = None if weight is None else weight[keep]
    values = np.ones(len(source), np.int8) if weight is None else weight.astype(np.float64)
    # scipy chooses 32- or 64-bit indices by num_nodes and the number of edges, and sorts and merges row by row.
    matrix = scipy.sparse.coo_matrix((values, (target, source)), shape=(num_nodes, num_nodes)).tocsr()
    matrix.sum_duplicates()
    if weight is None:
        matrix.data[:] = 1
    return matrix, num_loops


def _with_reverse(matrix: scipy.sparse.csr_matrix, symmetrize: bool) -> tuple[scipy.sparse.csr_matrix, bool]:
    # Returns the matrix with the reverse of each edge that lacks it, if asked, and whether all edges then hold
    # both ways. An edge that is there keeps its weight, so weights of the two directions may differ.
    reverse = matrix.transpose().tocsr()
    is_symmetric = (np.array_equal(reverse.indptr, matrix.indptr) and np.array_equal(reverse.indices, matrix.indices))
    if is_symmetric or not symmetrize:
        return matrix, is_symmetric
    if matrix.dtype != np.int8:
        # If an edge exists already, the difference is exactly zero, and scipy drops zeros.
        reverse = reverse - reverse.multiply(matrix.astype(bool))
    both = (matrix + reverse).tocsr()
    both.sort_indices()
    return both, True


def _num_isolated(indptr: np.ndarray, indices: np.ndarray) -> int:
    is_touched = np.diff(indptr) > 0
    is_touched[indices] = True
    return int(np.count_nonzero(~is_touched))
