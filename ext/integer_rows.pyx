"""Integer sums to codes or values. A shell over ext/src/integer_rows.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

cdef extern from "integer_rows.h":
    ctypedef struct integer_rows:
        int64_t num_rows, dim
        const float *rows
        const float *row_scale
        const float *column_scale
        const int32_t *sums
        const int32_t *own
        const int8_t *near
        const float *own_row_scale
        const float *own_column_scale
        const float *bias
        const float *norm_weight
        const float *norm_bias
        float epsilon, norm_eps
        int rectifies
    ctypedef struct row_target:
        uint8_t *codes
        const float *step
        const float *limit
        int64_t stride
        int is_signed
        float *values
    int c_rescale_rows "rescale_rows" (integer_rows, row_target) nogil

cdef const float *floats(const float[::1] values) noexcept:
    return NULL if values is None else &values[0]

cdef const int32_t *integers(const int32_t[:, ::1] values) noexcept:
    return NULL if values is None else &values[0, 0]


def rescale_rows(const float[:, ::1] rows, const int32_t[:, ::1] sums, const float[::1] row_scale,
                 const float[::1] column_scale, const int8_t[:, ::1] near, float epsilon, const int32_t[:, ::1] own,
                 const float[::1] own_row_scale, const float[::1] own_column_scale, const float[::1] bias,
                 const float[::1] norm_weight, const float[::1] norm_bias, float norm_eps, bint rectifies,
                 uint8_t[:, ::1] codes, const float[::1] step, const float[::1] limit, bint is_signed,
                 float[:, ::1] values):
    """See ext/src/integer_rows.h; what is None is left out. Returns the bits of the faults."""
    cdef integer_rows a
    cdef row_target target
    cdef int faults
    a.num_rows = rows.shape[0] if sums is None else sums.shape[0]
    a.dim = rows.shape[1] if sums is None else sums.shape[1]
    if a.num_rows == 0 or a.dim == 0:
        return 0
    a.rows = NULL if rows is None else &rows[0, 0]
    a.sums, a.own = integers(sums), integers(own)
    a.near = NULL if near is None else &near[0, 0]
    a.row_scale, a.column_scale, a.bias = floats(row_scale), floats(column_scale), floats(bias)
    a.own_row_scale, a.own_column_scale = floats(own_row_scale), floats(own_column_scale)
    a.norm_weight, a.norm_bias = floats(norm_weight), floats(norm_bias)
    a.epsilon, a.norm_eps, a.rectifies = epsilon, norm_eps, rectifies
    target.codes = NULL if codes is None else &codes[0, 0]
    target.values = NULL if values is None else &values[0, 0]
    target.step, target.limit = floats(step), floats(limit)
    target.stride = 0 if step is None or step.shape[0] == 1 else 1
    target.is_signed = is_signed
    with nogil:
        faults = c_rescale_rows(a, target)
    return faults
