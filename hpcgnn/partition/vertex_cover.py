"""Vertex cover: the fewest sources and targets of arcs such that each arc has one of them."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import maximum_bipartite_matching

NONE = -1


def minimum_vertex_cover(arcs: scipy.sparse.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return a smallest set of rows and columns that holds the row or the column of every entry.

    It is as large as the largest matching: of a matched pair it has one. Where both would do it has the column if a
    path of entries, every other one of them matched, leads there from a row without a match.

    Parameters
    ----------
    arcs : (num_sources, num_targets), an entry an arc; its values are not read

    Returns
    -------
    has_source : (num_sources,) bool, has_target : (num_targets,) bool      who is in the set

    Reference: König's theorem, 1931; the matching is Hopcroft and Karp's, SIAM J. Comput. 1973, in time
    O(arcs sqrt(sources)).
    """
    if not arcs.nnz:
        return np.zeros(arcs.shape[0], bool), np.zeros(arcs.shape[1], bool)
    column_of = maximum_bipartite_matching(arcs, perm_type="column")
    row_of = np.full(arcs.shape[1], NONE, np.int32)
    matched = np.flatnonzero(column_of != NONE)
    row_of[column_of[matched]] = matched
    is_reached, has_target = column_of == NONE, np.zeros(arcs.shape[1], bool)
    rows = np.flatnonzero(is_reached)
    while len(rows):
        columns = arcs[rows].indices
        columns = np.unique(columns[~has_target[columns]])
        has_target[columns] = True
        rows = row_of[columns]      # all have a match, or the matching would not be the largest
        rows = rows[~is_reached[rows]]
        is_reached[rows] = True
    return ~is_reached, has_target
