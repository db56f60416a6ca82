"""Reductions: the matrices by which one rank's rows sum their neighbors', made once each, forward and backward.

Messages, and which rows a pass needs, are not known here.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse

from hpcgnn.errors import KernelError
from hpcgnn.graph.normalization import degree_factor
from hpcgnn.ops.aggregation import SparseRows, from_csr
from hpcgnn.ops.cuda.resident import resident

REDUCTIONS = ("sum", "mean", "gcn")


class Reductions:
    """The matrix of each reduction, and its transpose.

    Parameters
    ----------
    indptr : (num_inner + 1,) int64, indices : (num_edges,) int32     CSR by destination, local rows
    num_rows : int                                                    inner and halo rows
    degree : (num_rows,)                                              in the whole graph, or sums of weights there
    has_half_sums : bool                                              see `SparseRows`
    edge_weight : (num_edges,) float32 beside indices, or None
    num_variable : int or None                                        rows behind the first ones are constants, and no
                                                                      transpose brings them a gradient; None: none is
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
        """Return the matrices that have been asked for so far."""
        return [matrix for pair in self._made.values() for matrix in pair]

    @property
    def arrays(self) -> list[np.ndarray]:
        """Return the arrays of the transposed arcs, which are there from the start."""
        return [array for array in self._transposed if array is not None]

    def matrices(self, reduction: str) -> tuple[SparseRows, SparseRows]:
        """Return the matrix of a reduction, (num_inner, num_rows), and its transpose.

        Raises
        ------
        KernelError      an unknown reduction
        """
        if reduction not in self._made:
            self._made[reduction] = self._build(reduction)
        return self._made[reduction]

    def _build(self, reduction: str) -> tuple[SparseRows, SparseRows]:
        if reduction not in REDUCTIONS:
            raise KernelError(f"reduction must be one of {(*REDUCTIONS, 'max')}, found {reduction!r}")
        # Both matrices hold the same arrays, of which a device keeps one copy.
        factor = degree_factor(self._degree, reduction)
        row_scale = None if factor is None else resident(factor[:self._num_inner])
        column_scale = resident(factor) if reduction == "gcn" else None
        num_self = self._num_inner if reduction == "gcn" else 0
        alike = {"num_self": num_self, "has_half_sums": self._half_sums}
        *by_column, by_column_weight = self._transposed
        forward = from_csr(self._indptr, self._indices, self._num_rows, row_scale=row_scale, column_scale=column_scale,
                           entry_scale=self._edge_weight, **alike)
        backward = from_csr(*by_column, self._num_inner, row_scale=column_scale, column_scale=row_scale,
                            entry_scale=by_column_weight, **alike)
        return forward, backward

    def halo_squares(self, reduction: str) -> np.ndarray:
        """Sum, for each halo row, the squared coefficients by which inner rows sum it, as (num_halo,) float32."""
        forward, transposed = self.matrices(reduction)
        row_scale = np.ones(self._num_inner) if forward.row_scale is None else forward.row_scale.astype(np.float64)
        weight = 1.0 if transposed.entry_scale is None else transposed.entry_scale.astype(np.float64)
        squares = np.concatenate([[0.0], np.cumsum((row_scale[transposed.indices] * weight) ** 2)])
        total = squares[transposed.end[self._num_inner:]] - squares[transposed.begin[self._num_inner:]]
        scale = 1.0 if forward.column_scale is None else forward.column_scale[self._num_inner:].astype(np.float64)
        return (total * scale ** 2).astype(np.float32)


def _first_columns(indptr: np.ndarray, indices: np.ndarray, edge_weight: np.ndarray | None,
                   num_columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the entries of a CSR in its first columns, and their weights."""
    is_first = indices < num_columns
    ends = np.concatenate([[0], np.cumsum(is_first)])
    return ends[indptr], indices[is_first], None if edge_weight is None else edge_weight[is_first]


def _transpose(indptr: np.ndarray, indices: np.ndarray, edge_weight: np.ndarray | None,
               num_columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the CSC of a CSR: indptr int64, indices int32, destinations ascending within a column, and the weights."""
    shape = (len(indptr) - 1, num_columns)
    values = np.ones(len(indices), dtype=np.int8) if edge_weight is None else edge_weight
    by_column = scipy.sparse.csr_matrix((values, indices, indptr), shape=shape).tocsc()
    return (resident(by_column.indptr.astype(np.int64)), resident(by_column.indices.astype(np.int32)),
            None if edge_weight is None else resident(by_column.data))
