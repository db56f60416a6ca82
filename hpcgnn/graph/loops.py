"""The entries of a part's adjacency, self-loops stored, by destination and by source: what attention weighs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse

from hpcgnn.ops.aggregation import SparseRows, from_csr
from hpcgnn.ops.cuda.resident import resident


class Adjacency(NamedTuple):
    """The same entries twice.

    Attributes
    ----------
    matrix : SparseRows                        a row an inner node, its entries the in-neighbors' local rows
    transposed : SparseRows                    a row an inner or halo node, its entries the out-neighbors' local rows
    entry_index : (num_entries,) int64         position in `matrix` of each entry of `transposed`
    """

    matrix: SparseRows
    transposed: SparseRows
    entry_index: np.ndarray


def build_adjacency(indptr: np.ndarray, indices: np.ndarray, num_rows: int, with_self: bool = True,
                    has_half_sums: bool = False) -> Adjacency:
    """Return the adjacency of a CSR by destination, each node once among its own in-neighbors where `with_self`.

    Parameters
    ----------
    indptr : (num_inner + 1,) int64, indices : (num_edges,) int32     local rows below num_rows
    num_rows : int                                                    inner and halo nodes
    has_half_sums : bool                                              see `SparseRows`
    """
    if with_self:
        indptr, indices = store_self_loops(indptr, indices)
    num_inner = len(indptr) - 1
    position = np.arange(len(indices), dtype=np.int64)
    by_source = scipy.sparse.csr_matrix((position, indices, indptr), shape=(num_inner, num_rows)).tocsc()
    transposed = from_csr(by_source.indptr.astype(np.int64), by_source.indices.astype(np.int32), num_inner,
                          has_half_sums=has_half_sums)
    matrix = from_csr(indptr, indices, num_rows, has_half_sums=has_half_sums)
    return Adjacency(matrix, transposed, resident(by_source.data))


def store_loop_weights(indptr: np.ndarray, indices: np.ndarray, edge_weight: np.ndarray) -> np.ndarray:
    """Return the weights of the entries that `store_self_loops` makes of a CSR's: those of self-loops are 1.

    Parameters
    ----------
    edge_weight : (num_edges,) float32, beside indices

    Returns
    -------
    (num_entries,) float32
    """
    num_inner = len(indptr) - 1
    target = np.repeat(np.arange(num_inner), np.diff(indptr))
    is_other = indices != target
    num_before = np.cumsum(np.bincount(target[is_other], minlength=num_inner))
    return np.insert(edge_weight[is_other], np.concatenate([[0], num_before])[:num_inner], np.float32(1))


def store_self_loops(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the CSR with the entry (v, v) first in every row v, and nowhere else.

    Returns
    -------
    indptr : (num_inner + 1,) int64, indices : int32
    """
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
