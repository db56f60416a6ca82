"""Sums of neighbors' rows of codes. A shell over ext/src/code_aggregation.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "code_aggregation.h":
    ctypedef struct code_rows:
        int64_t num_rows, num_entries, num_codes, dim
        const int64_t *indptr
        const int32_t *indices
        const uint8_t *codes
        int is_signed
    int c_sum_code_rows "sum_code_rows" (code_rows, int32_t *) nogil


def sum_code_rows(const int64_t[::1] indptr, const int32_t[::1] indices, const uint8_t[:, ::1] codes, bint is_signed,
                  int32_t[:, ::1] out):
    """Write sums to out; return 0, or the number of a fault in ext/src/code_aggregation.h."""
    cdef code_rows a
    cdef int fault = 0
    if out.shape[0] == 0 or out.shape[1] == 0:
        return 0
    a.num_rows, a.num_entries, a.num_codes, a.dim = out.shape[0], indices.shape[0], codes.shape[0], out.shape[1]
    a.indptr, a.indices, a.codes, a.is_signed = &indptr[0], NULL, NULL, is_signed
    if indices.shape[0]:
        a.indices = &indices[0]
    if codes.shape[0]:
        a.codes = &codes[0, 0]
    with nogil:
        fault = c_sum_code_rows(a, &out[0, 0])
    return fault
