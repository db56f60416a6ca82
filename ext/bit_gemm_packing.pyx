"""Matrices to planes of bits and back. A shell over ext/src/bit_gemm_packing.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "bit_gemm_packing.h":
    ctypedef unsigned int uint32_t
    ctypedef struct code_source:
        const void *rows
        int is_float
        int64_t num_rows, num_columns
        const float *low
        const float *step
        int is_per_line
        float offset
    ctypedef struct bit_planes:
        uint32_t *words
        int num_planes
        int64_t num_padded, line_words
    void c_pack_rows "pack_rows" (code_source, bit_planes) nogil
    void c_pack_columns "pack_columns" (code_source, bit_planes) nogil
    void c_unpack_lines "unpack_lines" (bit_planes, int64_t, int64_t, uint8_t *) nogil
    void c_sum_lines "sum_lines" (bit_planes, int64_t, int64_t *) nogil

cdef bit_planes planes_of(const int32_t[:, :, ::1] words) noexcept:
    cdef bit_planes planes
    planes.words = <uint32_t *>&words[0, 0, 0]
    planes.num_planes, planes.num_padded, planes.line_words = words.shape[0], words.shape[1], words.shape[2]
    return planes

cdef void pack(code_source source, bit_planes planes, bint is_by_column) noexcept nogil:
    if is_by_column:
        c_pack_columns(source, planes)
    else:
        c_pack_rows(source, planes)


def pack_codes(const uint8_t[:, ::1] codes, int32_t[:, :, ::1] words, bint is_by_column):
    """Pack codes into planes `words`, zeros before; lines are the columns of the matrix or its rows."""
    cdef code_source source
    if codes.shape[0] == 0 or codes.shape[1] == 0:
        return
    source.rows, source.is_float = &codes[0, 0], False
    source.num_rows, source.num_columns, source.is_per_line = codes.shape[0], codes.shape[1], False
    cdef bit_planes planes = planes_of(words)
    with nogil:
        pack(source, planes, is_by_column)


def pack_values(const float[:, ::1] values, const float[::1] low, const float[::1] step, float offset,
                int32_t[:, :, ::1] words, bint is_by_column):
    """Pack the values' codes into planes `words`, zeros before; low and step hold one number, or one per line."""
    cdef code_source source
    if values.shape[0] == 0 or values.shape[1] == 0:
        return
    source.rows, source.is_float = &values[0, 0], True
    source.num_rows, source.num_columns, source.is_per_line = values.shape[0], values.shape[1], low.shape[0] > 1
    source.low, source.step, source.offset = &low[0], &step[0], offset
    cdef bit_planes planes = planes_of(words)
    with nogil:
        pack(source, planes, is_by_column)


def unpack_lines(const int32_t[:, :, ::1] words, uint8_t[:, ::1] codes):
    """Write the codes of the first lines to `codes` (lines, length)."""
    if codes.shape[0] == 0 or codes.shape[1] == 0:
        return
    cdef bit_planes planes = planes_of(words)
    with nogil:
        c_unpack_lines(planes, codes.shape[0], codes.shape[1], &codes[0, 0])


def sum_lines(const int32_t[:, :, ::1] words, int64_t[::1] sums):
    """Write the sum of the codes of each of the first lines to `sums`."""
    if sums.shape[0] == 0 or words.shape[2] == 0:
        return
    cdef bit_planes planes = planes_of(words)
    with nogil:
        c_sum_lines(planes, sums.shape[0], &sums[0])
