"""Simulated buffers in front of DRAM. A shell over ext/src/condense_traffic.c, checked in hpcgnn.partition."""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "condense_traffic.h":
    ctypedef struct clustered_rows:
        int64_t num_clusters
        const int64_t *start
        const int64_t *indptr
        const int32_t *indices
    ctypedef struct line_buffer:
        int64_t line_bytes, capacity, num_held, num_lines
        int is_lru
        int32_t *newer
        int32_t *older
    ctypedef struct line_list:
        int64_t num_lines
        int32_t *line
        uint8_t *is_sparse
    void c_fetch_lines "fetch_lines" (clustered_rows, int64_t, line_buffer, int64_t *) nogil
    void c_list_fetched_lines "list_fetched_lines" (clustered_rows, int64_t, int64_t, int64_t, line_buffer *,
                                                    line_list *, int64_t *) nogil


def fetch_lines(const int64_t[::1] start, const int64_t[::1] indptr, const int32_t[::1] indices, int64_t row_bytes,
                int64_t line_bytes, int64_t capacity, bint is_lru):
    """Number of lines that an empty buffer of `capacity` >= 1 lines fetches within clusters, and across clusters."""
    cdef clustered_rows rows
    cdef line_buffer buffer
    cdef int64_t num_lines = ((indptr.shape[0] - 1) * row_bytes + line_bytes - 1) // line_bytes
    cdef int32_t[::1] newer = np.full(num_lines + 1, -1, np.int32)
    cdef int32_t[::1] older = np.full(num_lines + 1, -1, np.int32)
    cdef int64_t[2] fetched = [0, 0]
    if indices.shape[0] == 0:
        return 0, 0
    newer[num_lines] = older[num_lines] = <int32_t>num_lines
    rows.num_clusters, rows.start, rows.indptr, rows.indices = start.shape[0] - 1, &start[0], &indptr[0], &indices[0]
    buffer.line_bytes, buffer.capacity, buffer.num_held, buffer.num_lines = line_bytes, capacity, 0, num_lines
    buffer.is_lru, buffer.newer, buffer.older = is_lru, &newer[0], &older[0]
    with nogil:
        c_fetch_lines(rows, row_bytes, buffer, fetched)
    return fetched[0], fetched[1]


def list_fetched_lines(const int64_t[::1] start, const int64_t[::1] indptr, const int32_t[::1] indices,
                       int64_t first, int64_t last, int64_t row_bytes, int64_t line_bytes, int64_t capacity,
                       bint is_lru, int32_t[::1] newer, int32_t[::1] older, int64_t[::1] num_held,
                       int32_t[::1] line, uint8_t[::1] is_sparse, int64_t[::1] end):
    """List the lines that clusters first .. last - 1 fetch in `line` and `is_sparse`, and where each cluster ends.

    The buffer is `newer` and `older`, with one entry more than there are lines (at first -1, but the last entry its own
    index), and `num_held`, an array of one number, 0 at first.
    """
    cdef clustered_rows rows
    cdef line_buffer buffer
    cdef line_list lines
    rows.num_clusters, rows.start, rows.indptr, rows.indices = start.shape[0] - 1, &start[0], &indptr[0], &indices[0]
    buffer.line_bytes, buffer.capacity, buffer.num_held = line_bytes, capacity, num_held[0]
    buffer.num_lines, buffer.is_lru, buffer.newer, buffer.older = newer.shape[0] - 1, is_lru, &newer[0], &older[0]
    lines.num_lines, lines.line, lines.is_sparse = 0, &line[0], &is_sparse[0]
    with nogil:
        c_list_fetched_lines(rows, first, last, row_bytes, &buffer, &lines, &end[0])
    num_held[0] = buffer.num_held
