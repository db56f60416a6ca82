"""Clusters of rows by label propagation. A shell over ext/src/nesting.c; contracts are checked in hpcgnn.partition."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "nesting.h":
    ctypedef struct nested_rows:
        int64_t num_units
        const int64_t *indptr
        const int32_t *indices
        const int64_t *node_of
        const int32_t *unit_of
        const int32_t *row
        const int64_t *unit_start
        int32_t *cluster
        int64_t *size
        int32_t *count
        int32_t *touched
    int64_t c_propagate_clusters "propagate_clusters" (nested_rows, int64_t, int64_t) nogil


def propagate_clusters(const int64_t[::1] indptr, const int32_t[::1] indices, const int64_t[::1] node_of,
                       const int32_t[::1] unit_of, const int32_t[::1] row, const int64_t[::1] unit_start,
                       int32_t[::1] cluster, int64_t[::1] size, int32_t[::1] count, int32_t[::1] touched,
                       int64_t capacity, int64_t max_rounds):
    """Move units between clusters, in place; returns the moves of the last round."""
    cdef nested_rows rows
    cdef int64_t moves
    if cluster.shape[0] == 0 or indices.shape[0] == 0:
        return 0
    rows.num_units = cluster.shape[0]
    rows.indptr, rows.node_of = &indptr[0], &node_of[0]
    rows.indices = &indices[0]
    rows.unit_of, rows.row, rows.unit_start = &unit_of[0], &row[0], &unit_start[0]
    rows.cluster, rows.size, rows.count, rows.touched = &cluster[0], &size[0], &count[0], &touched[0]
    with nogil:
        moves = c_propagate_clusters(rows, capacity, max_rounds)
    return moves
