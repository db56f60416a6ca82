"""A simulated cache of rows. A shell over ext/src/row_cache.c, checked in hpcgnn.accelerators.rows."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "row_cache.h":
    ctypedef struct row_cache:
        int64_t num_rows, capacity, held_bytes
        const int64_t *num_bytes
        int32_t *newer
        int32_t *older
    void c_use_rows "use_rows" (row_cache *, const int32_t *, int64_t, uint8_t *) nogil


def use_rows(const int32_t[::1] row, const int64_t[::1] num_bytes, int64_t capacity, int64_t held_bytes,
             int32_t[::1] newer, int32_t[::1] older, uint8_t[::1] missed):
    """Use rows, change `newer` and `older` (num_rows + 1,), fill `missed`, and return the bytes that are held then."""
    cdef row_cache cache
    if row.shape[0] == 0:
        return held_bytes
    cache.num_rows, cache.capacity, cache.held_bytes = num_bytes.shape[0], capacity, held_bytes
    cache.num_bytes, cache.newer, cache.older = &num_bytes[0], &newer[0], &older[0]
    with nogil:
        c_use_rows(&cache, &row[0], row.shape[0], &missed[0])
    return cache.held_bytes
