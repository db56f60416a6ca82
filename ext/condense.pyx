"""Condensed regions of clustered rows. A shell over ext/src/condense.c; contracts are checked in hpcgnn.partition."""

import numpy as np

from libc.stdint cimport int32_t, int64_t

cdef extern from "condense.h":
    ctypedef struct clustered_rows:
        int64_t num_clusters
        const int64_t *start
        const int64_t *indptr
        const int32_t *indices
    void c_count_copies "count_copies" (clustered_rows, int64_t *, int32_t *) nogil
    void c_list_copies "list_copies" (clustered_rows, const int64_t *, int32_t *, int32_t *, int32_t *) nogil


def condensed_regions(const int64_t[::1] start, const int64_t[::1] indptr, const int32_t[::1] indices):
    """Return region, copied_row and place, see ext/src/condense.h; cluster c has rows start[c] .. start[c + 1] - 1."""
    cdef clustered_rows rows
    cdef int64_t num_rows = indptr.shape[0] - 1
    cdef int64_t[::1] region = np.zeros(start.shape[0], np.int64)
    cdef int32_t[::1] last = np.full(num_rows, -1, np.int32)
    cdef int32_t[::1] place = np.full(indices.shape[0], -1, np.int32)
    cdef int32_t[::1] copied_row
    if indices.shape[0] == 0:
        return np.asarray(region), np.empty(0, np.int32), np.asarray(place)
    rows.num_clusters, rows.start, rows.indptr, rows.indices = start.shape[0] - 1, &start[0], &indptr[0], &indices[0]
    with nogil:
        c_count_copies(rows, &region[0], &last[0])
    copied_row = np.empty(region[start.shape[0] - 1], np.int32)
    if copied_row.shape[0]:
        last[:] = -1
        with nogil:
            c_list_copies(rows, &region[0], &last[0], &copied_row[0], &place[0])
    return np.asarray(region), np.asarray(copied_row), np.asarray(place)
