"""Batches cut out of a part. A shell over ext/src/cutting.c; contracts are those of hpcgnn.graph.batch."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "cutting.h":
    ctypedef struct part_arcs:
        const int64_t *indptr
        const int32_t *indices
        int32_t *place
    int64_t c_arcs_inside "arcs_inside" (part_arcs, const int64_t *, int64_t, int32_t *, int32_t *) nogil
    int64_t c_cut_rows "cut_rows" (part_arcs, const int64_t *, int64_t, int64_t, int64_t *, int64_t *, int32_t *,
                                   int64_t *) nogil


def arcs_inside(const int64_t[::1] indptr, const int32_t[::1] indices, int32_t[::1] place, const int64_t[::1] rows,
                int32_t[::1] source, int32_t[::1] target):
    """Write the arcs between rows of a batch to the first items of source and target; returns their number."""
    cdef int64_t num_arcs
    if source.shape[0] == 0:
        return 0
    cdef part_arcs part = part_arcs(&indptr[0], &indices[0], &place[0])
    with nogil:
        num_arcs = c_arcs_inside(part, &rows[0], rows.shape[0], &source[0], &target[0])
    return num_arcs


def cut_rows(const int64_t[::1] indptr, const int32_t[::1] indices, int32_t[::1] place, const int64_t[::1] rows,
             int64_t num_fresh, int64_t[::1] far, int64_t[::1] new_indptr, int32_t[::1] new_indices,
             int64_t[::1] arc):
    """Write the CSR of a batch, append far rows to the first num_fresh, and return the number of far rows."""
    cdef int64_t num_far
    if arc.shape[0] == 0:
        new_indptr[:] = 0
        return num_fresh
    cdef part_arcs part = part_arcs(&indptr[0], &indices[0], &place[0])
    with nogil:
        num_far = c_cut_rows(part, &rows[0], rows.shape[0], num_fresh, &far[0], &new_indptr[0], &new_indices[0], &arc[0])
    return num_far
