"""Sparse aggregation. A shell over ext/src/aggregation.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "aggregation.h":
    ctypedef struct sparse_rows:
        int64_t num_rows, num_self
        const int64_t *indptr
        const int32_t *indices
        const float *row_scale
        const float *column_scale
    void c_aggregate_rows "aggregate_rows" (sparse_rows, const float *, int64_t, float *) nogil


def aggregate_rows(const int64_t[::1] indptr, const int32_t[::1] indices, row_scale, column_scale, int64_t num_self,
                   const float[:, ::1] h, float[:, ::1] out):
    """out[v] = row_scale[v] * (sum of column_scale[u] h[u] over row v, and v itself where v < num_self)."""
    cdef sparse_rows a
    cdef const float[::1] scale
    if out.shape[0] == 0 or out.shape[1] == 0:
        return
    if h.shape[0] == 0:
        out[:, :] = 0
        return
    a.num_rows = out.shape[0]
    a.num_self = num_self
    a.indptr = &indptr[0]
    a.indices = &indices[0] if indices.shape[0] else NULL
    a.row_scale = a.column_scale = NULL
    if row_scale is not None:
        scale = row_scale
        a.row_scale = &scale[0]
    if column_scale is not None:
        scale = column_scale
        a.column_scale = &scale[0]
    with nogil:
        c_aggregate_rows(a, &h[0, 0], h.shape[1], &out[0, 0])
