# The two sides of a combination, for the shells that multiply them.

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

cdef extern from "combination.h":
    ctypedef struct code_rows:
        const uint8_t *codes
        int64_t num_rows, dim
        int is_signed
    ctypedef struct weight_rows:
        const int8_t *codes
        int64_t num_outputs, dim

cdef code_rows rows_of(const uint8_t[:, ::1] codes, bint is_signed) noexcept:
    cdef code_rows rows
    rows.num_rows, rows.dim, rows.is_signed = codes.shape[0], codes.shape[1], is_signed
    rows.codes = &codes[0, 0] if codes.shape[0] and codes.shape[1] else NULL
    return rows

cdef weight_rows weights_of(const int8_t[:, ::1] weight) noexcept:
    cdef weight_rows rows
    rows.num_outputs, rows.dim = weight.shape[0], weight.shape[1]
    rows.codes = &weight[0, 0] if weight.shape[0] and weight.shape[1] else NULL
    return rows
