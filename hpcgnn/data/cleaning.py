"""Makes a clean CSR graph from a list of edges, with what they carry, and reports what was found and done.

Self-loops and duplicates are removed; the weights of duplicates are added. Edges of two relations between the same
nodes are two edges. Edges of one relation between the same nodes are duplicates if their attributes are equal too;
others are kept as parallel edges. Example, with one attribute: of 0 -> 1 (2.0), 0 -> 1 (2.0) and 0 -> 1 (5.0), the
second is removed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse

from hpcgnn._ext import partition as kernels
from hpcgnn.data.arcs import INT32_NODES, Ends, chunks, sort_arcs
from hpcgnn.data.dataset import REVERSE, CleaningReport
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
        held = ", as float32 holds them" * bool(np.isfinite(weight[place]) and weight[place] > 0)
        raise DatasetError(f"{name} has an edge of weight {weight[place]} from node {source[place]} to "
                           f"{target[place]}; expected positive, finite weights{held}: leave out such edges, or all "
                           "weights by weight=none (edge_weight=False in Python)")
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
    edge_type: np.ndarray | None = None      # (num_edges,) int32, ascending within the edges from one source
    edge_attr: np.ndarray | None = None      # (num_edges, num_edge_features) float32
    relation_names: tuple[str, ...] = ()      # by relation; with added reverses, these follow in the same order

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
    _check_ends(source, target, num_nodes, name)
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



class TypedEdges(NamedTuple):
    """A list of edges with what they carry; each attribute has a value per edge, or is None."""

    source: np.ndarray      # (num_edges,) integer, as target
    target: np.ndarray
    weight: np.ndarray | None = None      # (num_edges,) number, positive and finite
    relation: np.ndarray | None = None      # (num_edges,) int32, from 0
    attr: np.ndarray | None = None      # (num_edges, num_edge_features) float32, finite

    def take(self, rows: np.ndarray) -> TypedEdges:
        """The edges at some places, (n,) int64 or a mask."""
        return TypedEdges(*(None if values is None else values[rows] for values in self))

    def reversed(self, num_relations: int = 0) -> TypedEdges:
        """The reverse of each edge, with what it carries; `num_relations` is added to its relation."""
        relation = None if self.relation is None else self.relation + np.int32(num_relations)
        return self._replace(source=self.target, target=self.source, relation=relation)

    def joined(self, others: TypedEdges) -> TypedEdges:
        return TypedEdges(*(None if values is None else np.concatenate([values, more])
                            for values, more in zip(self, others, strict=True)))

    def sorted(self) -> TypedEdges:
        """The edges by destination, source, relation; equal ones stay in their order."""
        keys = (self.source, self.target) if self.relation is None else (self.relation, self.source, self.target)
        return self.take(np.lexsort(keys))

    def repeats(self) -> np.ndarray:
        """Whether a sorted edge has the ends and the relation of the edge before, (num_edges,) bool."""
        found = np.zeros(len(self.source), bool)
        found[1:] = True
        for values in (self.source, self.target, self.relation):
            if values is not None:
                found[1:] &= values[1:] == values[:-1]
        return found


def build_typed_csr(edges: TypedEdges, num_nodes: int, both_ways: bool, symmetrize: bool, name: str,
                    relation_names: tuple[str, ...] = (), progress: Progress = silent) -> CleanGraph:
    """Clean edges with relations or attributes; they are sorted in memory.

    Duplicates have the same ends, relation and attributes. The first one stays, and weights are added. With
    `symmetrize`, nothing is added to a graph in which every edge holds both ways with its own relation and attributes.
    Otherwise each edge gets a reverse: of its own relation r if there are no relations to tell apart or `both_ways` is
    set, unless this edge is there already; else of relation r + R, where R is the number of relations.

    Parameters
    ----------
    edges : TypedEdges             ends in 0..num_nodes - 1, relations below len(relation_names)
    both_ways : bool               each edge is listed once and holds both ways, with its relation and attributes
    symmetrize : bool              add reverses
    relation_names : tuple of str  by relation; empty without relations

    Returns
    -------
    graph : CleanGraph             `report.is_symmetric` says that each edge u -> v has an edge v -> u with the same
                                   attributes, of the same relation or of the relation of its added reverses
    """
    _check_ends(edges.source, edges.target, num_nodes, name)
    is_weighted, remarks = check_weights(edges.weight, edges.source, edges.target, name)
    edges = edges._replace(weight=edges.weight.astype(np.float64) if is_weighted else None)
    progress("cleaning edges", None)
    is_edge = edges.source != edges.target
    num_source_edges, num_loops = len(is_edge), int(np.count_nonzero(~is_edge))
    kept, was_added = _distinct(edges.take(is_edge))
    remarks += ("weights of duplicate edges were added",) if was_added else ()
    num_unique, num_relations = len(kept.source), len(relation_names)
    num_parallel = int(np.count_nonzero(kept.repeats()))
    if num_parallel:
        alike = "the ends and the relation" if num_relations else "the ends"
        remarks += (f"edges with {alike} of another one, and other attributes, were kept as parallel edges: "
                    f"{num_parallel:,}",)
    is_symmetric = False
    if both_ways or (symmetrize and not num_relations) or _are_degrees_equal(kept, num_nodes):
        # An edge that is there already keeps its weight.
        both, _ = _distinct(kept.joined(kept.reversed()), adds_weights=False)
        is_symmetric = len(both.source) == num_unique
        if both_ways or (symmetrize and not num_relations):
            kept, is_symmetric = both, True
    if symmetrize and not is_symmetric:
        kept, is_symmetric = kept.joined(kept.reversed(num_relations)).sorted(), True
        relation_names = (*relation_names, *(f"{relation}{REVERSE}" for relation in relation_names))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(kept.target, minlength=num_nodes))]).astype(np.int64)
    indices = kept.source.astype(np.int32 if num_nodes < INT32_NODES else np.int64)
    report = _report(num_source_edges, num_loops, num_unique, indptr, indices, is_symmetric, remarks)
    return CleanGraph(indptr, indices, report, None if kept.weight is None else kept.weight.astype(np.float32),
                      kept.relation, kept.attr, relation_names)


def _distinct(edges: TypedEdges, adds_weights: bool = True) -> tuple[TypedEdges, bool]:
    # Returns the edges in their order, the first one of equal ones, and whether weights were added.
    edges = edges.sorted()
    repeats, place = edges.repeats(), np.arange(len(edges.source))
    first = place[~repeats][np.cumsum(~repeats) - 1] if edges.attr is None else _first_equal(edges.attr, repeats)
    is_first = first == place
    found, has_duplicates = edges.take(is_first), not is_first.all()
    if edges.weight is None or not adds_weights or not has_duplicates:
        return found, False
    number = np.cumsum(is_first) - 1
    return found._replace(weight=np.bincount(number[first], edges.weight)), True


def _first_equal(attr: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    # Per edge, the place of the first one with its ends, relation and attributes, (num_edges,) int64.
    first = np.arange(len(attr))
    has_like = repeats | np.append(repeats[1:], False)
    rows = np.flatnonzero(has_like)
    if not len(rows):
        return first
    # Equal rows have equal bytes once -0.0 is 0.0.
    content = np.ascontiguousarray(attr[rows] + np.float32(0.0))
    content = content.view(np.dtype((np.void, content.dtype.itemsize * content.shape[1])))[:, 0]
    _, code = np.unique(content, return_inverse=True)
    group = np.cumsum(~repeats)[rows]
    order = np.lexsort((code, group))      # stable, so the first of equal ones comes first
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (group[order][1:] != group[order][:-1]) | (code[order][1:] != code[order][:-1])
    first[rows[order]] = rows[order][is_new][np.cumsum(is_new) - 1]
    return first


def _are_degrees_equal(edges: TypedEdges, num_nodes: int) -> bool:
    # As many edges lead to each node as from it: a quick test that most directed graphs fail.
    return np.array_equal(*(np.bincount(ends, minlength=num_nodes) for ends in (edges.source, edges.target)))


def _report(num_source_edges: int, num_loops: int, num_unique: int, indptr: np.ndarray, indices: np.ndarray,
            is_symmetric: bool, remarks: tuple[str, ...]) -> CleaningReport:
    is_touched = np.diff(indptr) > 0
    is_touched[indices] = True
    return CleaningReport(
        source_edges=num_source_edges, duplicate_edges_removed=num_source_edges - num_loops - num_unique,
        self_loops_removed=num_loops, reverse_edges_added=len(indices) - num_unique,
        isolated_nodes=int(np.count_nonzero(~is_touched)), is_symmetric=is_symmetric, remarks=remarks)


def _check_ends(source: Ends, target: Ends, num_nodes: int, name: str) -> None:
    if num_nodes < 1:
        raise DatasetError(f"{name} has no nodes; expected at least one")
    check_memory(name, f"{num_nodes:,} nodes", num_nodes * BYTES_A_NODE)
    for ends in (source, target):
        if ends.dtype.kind not in "iu":
            raise DatasetError(f"{name} has edge ends of type {ends.dtype}; expected integers")
        low, high = 0, 0
        for part, _ in chunks(ends, ends):
            low, high = min(low, int(part.min())), max(high, int(part.max()))
        if low < 0 or high >= num_nodes:
            raise DatasetError(f"{name} has an edge to node {low if low < 0 else high}, which does not exist; node ids "
                               f"run from 0 to {num_nodes - 1}")


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
