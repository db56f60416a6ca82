"""Loops of graph partitioning. A shell over ext/src/partition.c; contracts are checked in hpcgnn.partition."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "partition.h":
    int c_has_symmetric_rows "has_symmetric_rows" (int64_t, const int64_t *, const int32_t *, int64_t *) nogil


def has_symmetric_rows(const int64_t[::1] indptr, const int32_t[::1] indices, int64_t[::1] cursor):
    """Whether every arc has its reverse, for a CSR with ascending rows; cursor is scratch, one entry a node."""
    cdef int symmetric
    if indices.shape[0] == 0:
        return True
    with nogil:
        symmetric = c_has_symmetric_rows(cursor.shape[0], &indptr[0], &indices[0], &cursor[0])
    return symmetric == 1
