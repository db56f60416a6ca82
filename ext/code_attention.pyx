"""Attention over codes. A shell over ext/src/code_attention.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int8_t, int32_t, int64_t

cdef extern from "code_attention.h":
    ctypedef struct code_attention:
        int64_t num_rows, first, num_codes, num_entries, dim, num_heads
        const int64_t *indptr
        const int32_t *indices
        const int8_t *codes
        const int64_t *target
        const int64_t *source
        const int64_t *coarse
        const int64_t *fine
    int c_attend_codes "attend_codes" (code_attention, float *) nogil
    void c_score_codes "score_codes" (code_attention, const double *, int64_t *, int64_t *) nogil


def score_codes(const int8_t[:, ::1] codes, const double[:, ::1] vectors, int64_t[:, ::1] target,
                int64_t[:, ::1] source):
    """See ext/src/code_attention.h."""
    cdef code_attention a
    if codes.shape[0] == 0 or codes.shape[1] == 0:
        return
    a.num_codes, a.dim, a.num_heads, a.codes = codes.shape[0], codes.shape[1], target.shape[1], &codes[0, 0]
    with nogil:
        c_score_codes(a, &vectors[0, 0], &target[0, 0], &source[0, 0])


def attend_codes(const int64_t[::1] indptr, const int32_t[::1] indices, int64_t first, const int8_t[:, ::1] codes,
                 const int64_t[:, ::1] target, const int64_t[:, ::1] source, const int64_t[::1] coarse,
                 const int64_t[::1] fine, float[:, ::1] out):
    """See ext/src/code_attention.h."""
    cdef code_attention a
    cdef int fault
    if out.shape[0] == 0 or out.shape[1] == 0:
        return 0
    a.num_rows, a.first, a.num_codes, a.num_entries = out.shape[0], first, codes.shape[0], indices.shape[0]
    a.dim, a.num_heads = codes.shape[1], target.shape[1]
    a.indptr, a.indices = &indptr[0], &indices[0] if indices.shape[0] else NULL
    a.codes, a.target, a.source = &codes[0, 0], &target[0, 0], &source[0, 0]
    a.coarse, a.fine = &coarse[0], &fine[0]
    with nogil:
        fault = c_attend_codes(a, &out[0, 0])
    return fault
