"""Products of codes with weight codes. A shell over ext/src/combination.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

include "combination_sides.pxi"

cdef extern from "combination.h":
    int c_combine_dense "combine_dense" (code_rows, weight_rows, int32_t *) nogil
    ctypedef struct code_survey:
        int64_t num_codes
        int bit_width
    code_survey c_survey_codes "survey_codes" (code_rows) nogil

def combine(const uint8_t[:, ::1] codes, bint is_signed, const int8_t[:, ::1] weight, int32_t[:, ::1] out):
    """codes @ weight.T into out, (num_rows, num_outputs)."""
    cdef code_rows rows = rows_of(codes, is_signed)
    cdef weight_rows weights = weights_of(weight)
    cdef int is_done
    if out.shape[0] == 0 or out.shape[1] == 0:
        return
    with nogil:
        is_done = c_combine_dense(rows, weights, &out[0, 0])
    if not is_done:
        raise MemoryError("no memory for the weights of a combination")


def survey_codes(const uint8_t[:, ::1] codes, bint is_signed):
    """Return the number of non-zero codes, and the fewest bits that hold every code."""
    cdef code_rows rows = rows_of(codes, is_signed)
    cdef code_survey found
    with nogil:
        found = c_survey_codes(rows)
    return found.num_codes, found.bit_width
