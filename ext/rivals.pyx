"""Counts of what beats an answer. A shell over ext/src/rivals.c; contracts are checked in hpcgnn.links."""

from libc.stdint cimport int64_t

cdef extern from "rivals.h":
    void c_count_rivals "count_rivals" (const float *, int64_t, const int64_t *, const float *, int64_t, int64_t *,
                                        int64_t *) nogil


def count_rivals(const float[:, ::1] products, const int64_t[::1] row, const float[::1] bar, int64_t[::1] better,
                 int64_t[::1] equal):
    """better[i] = number of products in row[i] above bar[i]; equal[i] = number of those that equal it."""
    if row.shape[0] == 0 or products.shape[1] == 0:
        better[:] = 0
        equal[:] = 0
        return
    with nogil:
        c_count_rivals(&products[0, 0], products.shape[1], &row[0], &bar[0], row.shape[0], &better[0], &equal[0])
