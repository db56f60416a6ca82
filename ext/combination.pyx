"""Products of codes with weight codes. A shell over ext/src/combination.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

cdef extern from "combination.h":
    ctypedef struct code_rows:
        const uint8_t *codes
        int64_t num_rows, dim
        int is_signed
    ctypedef struct weight_rows:
        const int8_t *codes
        int64_t num_outputs, dim
    int c_combine_dense "combine_dense" (code_rows, weight_rows, int32_t *) nogil
    int c_combine_sparse "combine_sparse" (code_rows, weight_rows, int32_t *) nogil
    ctypedef struct code_survey:
        int64_t num_codes
        int bit_width
    code_survey c_survey_codes "survey_codes" (code_rows) nogil

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


def combine(const uint8_t[:, ::1] codes, bint is_signed, const int8_t[:, ::1] weight, bint is_sparse,
            int32_t[:, ::1] out):
    """codes @ weight.T into out, (num_rows, num_outputs)."""
    cdef code_rows rows = rows_of(codes, is_signed)
    cdef weight_rows weights = weights_of(weight)
    cdef int is_done
    if out.shape[0] == 0 or out.shape[1] == 0:
        return
    with nogil:
        if is_sparse:
            is_done = c_combine_sparse(rows, weights, &out[0, 0])
        else:
            is_done = c_combine_dense(rows, weights, &out[0, 0])
    if not is_done:
        raise MemoryError("no memory for the weights of a combination")


def survey_codes(const uint8_t[:, ::1] codes, bint is_signed):
    """(how many codes are not zero, bits that hold each of them)."""
    cdef code_rows rows = rows_of(codes, is_signed)
    cdef code_survey found
    with nogil:
        found = c_survey_codes(rows)
    return found.num_codes, found.bit_width
