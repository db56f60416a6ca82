"""Sparse matrix times dense rows. A shell over ext/src/aggregation.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "aggregation.h":
    ctypedef struct sparse_rows:
        int64_t num_self, num_entries, num_tasks, num_heads
        const int64_t *begin
        const int64_t *end
        const int64_t *task
        const int32_t *indices
        const float *row_scale
        const float *column_scale
        const float *entry_scale
        const int64_t *entry_index
    ctypedef struct packed_rows:
        const uint8_t *message
        const uint8_t *bit_width
        const int64_t *payload_offset
        const int64_t *parameter_offset
    ctypedef struct dense_rows:
        const void *near
        const void *far
        int64_t num_near, num_far, split, dim
        int storage
        packed_rows packed
    void c_aggregate_rows "aggregate_rows" (sparse_rows, dense_rows, int, void *) nogil
    int64_t c_first_bad_row "first_bad_row" (sparse_rows, int64_t, int64_t, int64_t, int64_t) nogil
    int64_t c_first_outside "first_outside" (packed_rows, int64_t, int64_t, int64_t) nogil

cdef const float *floats(const float[::1] values) noexcept:
    return NULL if values is None or values.shape[0] == 0 else &values[0]

cdef const uint8_t *bytes_of(const uint8_t[:, ::1] rows) noexcept:
    return NULL if rows is None or rows.shape[0] == 0 else &rows[0, 0]

cdef packed_rows packed_rows_of(const uint8_t[::1] message, const uint8_t[::1] bit_width,
                                const int64_t[::1] payload_offset, const int64_t[::1] parameter_offset):
    cdef packed_rows rows
    rows.message = rows.bit_width = NULL
    rows.payload_offset = rows.parameter_offset = NULL
    if message.shape[0] and bit_width.shape[0]:
        rows.message, rows.bit_width = &message[0], &bit_width[0]
        rows.payload_offset, rows.parameter_offset = &payload_offset[0], &parameter_offset[0]
    return rows


def aggregate_rows(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                   const int32_t[::1] indices, const float[::1] row_scale, const float[::1] column_scale,
                   const float[:, ::1] entry_scale, const int64_t[::1] entry_index, int64_t num_self, int storage,
                   int64_t dim, int64_t split, const uint8_t[:, ::1] near, const uint8_t[:, ::1] far, bint accumulate,
                   uint8_t[:, ::1] out, packed=None):
    """out = matrix @ [near; far], or added to out; scales, far and entry_index may be None.

    packed is None, or (message, bit_width, payload_offset, parameter_offset) of far rows that are decoded as read.
    """
    cdef sparse_rows a
    cdef dense_rows h
    if out.shape[0] == 0 or out.shape[1] == 0:
        return
    a.num_self, a.num_entries, a.num_tasks, a.num_heads = num_self, indices.shape[0], task.shape[0] - 1, 1
    a.begin, a.end, a.task = &begin[0], &end[0], &task[0]
    a.indices = &indices[0] if indices.shape[0] else NULL
    a.row_scale, a.column_scale, a.entry_scale, a.entry_index = floats(row_scale), floats(column_scale), NULL, NULL
    if entry_scale is not None and entry_scale.shape[0]:
        a.entry_scale = &entry_scale[0, 0]
        a.num_heads = entry_scale.shape[1]
    if entry_index is not None and entry_index.shape[0]:
        a.entry_index = &entry_index[0]
    h.near, h.num_near = bytes_of(near), near.shape[0]
    h.far, h.num_far = bytes_of(far), 0 if far is None else far.shape[0]
    h.dim, h.split, h.storage = dim, split, storage
    h.packed.message = NULL
    if packed is not None:
        h.packed = packed_rows_of(packed[0], packed[1], packed[2], packed[3])
    with nogil:
        c_aggregate_rows(a, h, accumulate, &out[0, 0])


def first_bad_row(const int64_t[::1] begin, const int64_t[::1] end, const int32_t[::1] indices, int64_t num_columns,
                  int64_t no_row, int64_t split):
    """The first row with entries outside `indices`, or columns that no table has, or -1. See ext/src/aggregation.h."""
    cdef sparse_rows a
    cdef int64_t num_rows = begin.shape[0], bad
    if num_rows == 0:
        return -1
    a.num_entries, a.begin, a.end = indices.shape[0], &begin[0], &end[0]
    a.indices = &indices[0] if indices.shape[0] else NULL
    with nogil:
        bad = c_first_bad_row(a, num_rows, num_columns, no_row, split)
    return bad


def first_outside(const uint8_t[::1] message, const uint8_t[::1] bit_width, const int64_t[::1] payload_offset,
                  const int64_t[::1] parameter_offset, int64_t dim):
    """The first packed row that does not lie within the message, or has a width that is not packed, or -1."""
    cdef packed_rows rows = packed_rows_of(message, bit_width, payload_offset, parameter_offset)
    cdef int64_t num_rows = bit_width.shape[0], outside
    if num_rows and rows.message == NULL:
        return 0
    with nogil:
        outside = c_first_outside(rows, num_rows, dim, message.shape[0])
    return outside
