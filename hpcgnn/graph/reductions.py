"""Reductions: the sparse matrices by which a rank's rows sum their neighbors, forward and backward.

Coefficients follow from degrees in the whole graph, so no partition changes them. Example: node v has in-neighbors u
and w on two ranks; the mean weighs both by 1/2 on each rank, although each rank sees one edge. `build_adjacency` gives
the same entries with self-loops, without coefficients, for attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import SparseRows, from_csr
from hpcgnn.ops.resident import resident

REDUCTIONS = ("sum", "mean", "gcn")


class Reductions:
    """The matrix of each reduction and its transpose, made on first use, from a CSR by destination of local rows.

    degree : (num_rows,)               in-degrees, or sums of weights, in the whole graph, of inner and halo rows
    num_variable : int or None         rows after the first `num_variable` are constants without a gradient
    """

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, num_rows: int, degree: np.ndarray,
                 has_half_sums: bool, edge_weight: np.ndarray | None, num_variable: int | None = None) -> None:
        self._indptr, self._indices, self._num_rows = indptr, indices, num_rows
        self._num_inner, self._degree, self._half_sums = len(indptr) - 1, degree, has_half_sums
        self._edge_weight = edge_weight
        variable = indptr, indices, edge_weight
        if num_variable is not None:
            variable = _first_columns(*variable, num_variable)
        self._transposed = _transpose(*variable, num_rows)
        self._made: dict[str, tuple[SparseRows, SparseRows]] = {}

    @property
    def made(self) -> list[SparseRows]:
        return [matrix for pair in self._made.values() for matrix in pair]

    @property
    def arrays(self) -> list[np.ndarray]:
        return [array for array in self._transposed if array is not None]

    def matrices(self, reduction: str) -> tuple[SparseRows, SparseRows]:
        """Return the matrix of a reduction, (num_inner, num_rows), and its transpose; KernelError if it is unknown."""
        if reduction not in self._made:
            self._made[reduction] = self._build(reduction)
        return self._made[reduction]

    def _build(self, reduction: str) -> tuple[SparseRows, SparseRows]:
        if reduction not in REDUCTIONS:
            raise KernelError(f"reduction must be one of {(*REDUCTIONS, 'max')}, found {reduction!r}")
        # Both matrices hold the same arrays, so a device keeps one copy.
        factor = degree_factor(self._degree, reduction)
        row_scale = None if factor is None else resident(factor[:self._num_inner])
        column_scale = resident(factor) if reduction == "gcn" else None
        num_self = self._num_inner if reduction == "gcn" else 0
        alike: dict[str, Any] = {"num_self": num_self, "has_half_sums": self._half_sums}
        column_indptr, column_indices, by_column_weight = self._transposed
        forward = from_csr(self._indptr, self._indices, self._num_rows, row_scale=row_scale, column_scale=column_scale,
                           entry_scale=self._edge_weight, **alike)
        backward = from_csr(column_indptr, column_indices, self._num_inner, row_scale=column_scale,
                            column_scale=row_scale, entry_scale=by_column_weight, **alike)
        return forward, backward

    def halo_squares(self, reduction: str) -> np.ndarray:
        """Per halo row, sum the squared coefficients with which inner rows add it, (num_halo,) float32."""
        forward, transposed = self.matrices(reduction)
        row_scale = np.ones(self._num_inner) if forward.row_scale is None else forward.row_scale.astype(np.float64)
        weight = 1.0 if transposed.entry_scale is None else transposed.entry_scale.astype(np.float64)
        squares = np.concatenate([[0.0], np.cumsum((row_scale[transposed.indices] * weight) ** 2)])
        total = squares[transposed.end[self._num_inner:]] - squares[transposed.begin[self._num_inner:]]
        scale = 1.0 if forward.column_scale is None else forward.column_scale[self._num_inner:].astype(np.float64)
        return (total * scale ** 2).astype(np.float32)


def _first_columns(indptr: np.ndarray, indices: np.ndarray, edge_weight: np.ndarray | None,
                   num_columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    is_first = indices < num_columns
    ends = np.concatenate([[0], np.cumsum(is_first)])
    return ends[indptr], indices[is_first], None if edge_weight is None else edge_weight[is_first]


def _transpose(indptr: np.ndarray, indices: np.ndarray, edge_weight: np.ndarray | None,
               num_columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    shape = (len(indptr) - 1, num_columns)
    values = np.ones(len(indices), dtype=np.int8) if edge_weight is None else edge_weight
    by_column = scipy.sparse.csr_matrix((values, indices, indptr), shape=shape).tocsc()
    return (resident(by_column.indptr.astype(np.int64)), resident(by_column.indices.astype(np.int32, copy=False)),
            None if edge_weight is None else resident(by_column.data))


def degree_factor(in_degree: np.ndarray, reduction: str) -> np.ndarray | None:
    """Coefficient of each row, (n,) float32, by integer in-degrees or float32 sums of weights; None if all are 1.

    "mean" is 1 / in-degree, or 1 if the in-degree is 0. "gcn" is (in-degree + 1)^-1/2, which scales both ends of an
    edge (Kipf and Welling, ICLR 2017, Eq. 2).
    """
    if reduction == "sum":
        return None
    degree = in_degree.astype(np.float64)
    factor = 1.0 / np.sqrt(degree + 1) if reduction == "gcn" else 1.0 / np.where(degree > 0, degree, 1)
    return factor.astype(np.float32)


def weighted_degree(indptr: np.ndarray, edge_weight: np.ndarray) -> np.ndarray:
    """Sum the weights of each row's entries, (n,) float32, in order and in float64: no partition changes a bit."""
    target = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return np.bincount(target, edge_weight, minlength=len(indptr) - 1).astype(np.float32)


class Adjacency(NamedTuple):
    matrix: SparseRows       # per inner node, the local rows of its in-neighbors
    transposed: SparseRows   # per inner or halo node, the local rows of its out-neighbors
    entry_index: np.ndarray  # (num_entries,) int64, position in `matrix` of each entry of `transposed`


def build_adjacency(indptr: np.ndarray, indices: np.ndarray, num_rows: int, with_self: bool = True,
                    has_half_sums: bool = False) -> Adjacency:
    """Return the adjacency of a CSR by destination; with `with_self`, each node is its own in-neighbor exactly once."""
    if with_self:
        indptr, indices = store_self_loops(indptr, indices)
    num_inner = len(indptr) - 1
    position = np.arange(len(indices), dtype=np.int64)
    by_source = scipy.sparse.csr_matrix((position, indices, indptr), shape=(num_inner, num_rows)).tocsc()
    transposed = from_csr(by_source.indptr.astype(np.int64), by_source.indices.astype(np.int32, copy=False), num_inner,
                          has_half_sums=has_half_sums)
    matrix = from_csr(indptr, indices, num_rows, has_half_sums=has_half_sums)
    return Adjacency(matrix, transposed, resident(by_source.data))


def store_self_loops(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the CSR with the entry (v, v) first in every row v and nowhere else."""
    num_inner = len(indptr) - 1
    target = np.repeat(np.arange(num_inner), np.diff(indptr))
    is_other = indices != target
    looped = np.zeros(num_inner + 1, np.int64)
    np.cumsum(np.bincount(target[is_other], minlength=num_inner) + 1, out=looped[1:])
    entries = np.empty(looped[-1], np.int32)
    is_self = np.zeros(len(entries), bool)
    is_self[looped[:-1]] = True
    entries[is_self] = np.arange(num_inner)
    entries[~is_self] = indices[is_other]
    return looped, entries


def store_loop_weights(indptr: np.ndarray, indices: np.ndarray, edge_weight: np.ndarray) -> np.ndarray:
    """Return the weights of the entries of `store_self_loops`, (num_entries,) float32; self-loops weigh 1."""
    num_inner = len(indptr) - 1
    target = np.repeat(np.arange(num_inner), np.diff(indptr))
    is_other = indices != target
    num_before = np.cumsum(np.bincount(target[is_other], minlength=num_inner))
    return np.insert(edge_weight[is_other], np.concatenate([[0], num_before])[:num_inner], np.float32(1))
