"""A smallest set of sources and targets that covers all edges between two parts: the rows and sums that are sent."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import maximum_bipartite_matching

NONE = -1


def minimum_vertex_cover(arcs: scipy.sparse.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return a smallest set of rows and columns that covers every entry, as bool masks; values are ignored.

    Reference: König's theorem, 1931; the matching is Hopcroft and Karp's, SIAM J. Comput. 1973, in time O(edges
    sqrt(sources)).
    """
    if not arcs.nnz:
        return np.zeros(arcs.shape[0], bool), np.zeros(arcs.shape[1], bool)
    column_of = maximum_bipartite_matching(arcs, perm_type="column")
    row_of = np.full(arcs.shape[1], NONE, np.int32)
    matched = np.flatnonzero(column_of != NONE)
    row_of[column_of[matched]] = matched
    # Alternating paths from unmatched rows; the cover is the reached columns and the rows that are not reached.
    is_reached, has_target = column_of == NONE, np.zeros(arcs.shape[1], bool)
    rows = np.flatnonzero(is_reached)
    while len(rows):
        columns = arcs[rows].indices
        columns = np.unique(columns[~has_target[columns]])
        has_target[columns] = True
        rows = row_of[columns]      # all have a match, since the matching is the largest
        rows = rows[~is_reached[rows]]
        is_reached[rows] = True
    return ~is_reached, has_target
