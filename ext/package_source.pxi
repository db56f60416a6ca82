# Packages as hpcgnn.quantized.package.PackedRows.source gives them, for the shells that read them.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "package.h":
    ctypedef struct package_format:
        int64_t lengths[3]
        int is_signed
    ctypedef struct packages:
        package_format format
        int64_t num_rows, dim, num_bits, num_bytes, interval
        const uint8_t *stream
        const uint8_t *bitmap
        const int64_t *index_bit
        const int32_t *index_values
    ctypedef struct package_fault:
        int code
        int64_t row

cdef package_format format_of(const int64_t[::1] lengths, bint is_signed):
    cdef package_format form
    cdef int i
    for i in range(3):
        form.lengths[i] = lengths[i]
    form.is_signed = is_signed
    return form

cdef packages packages_of(source):
    """source: what PackedRows.source gives."""
    cdef packages p
    cdef const uint8_t[::1] stream = source[5]
    cdef const uint8_t[:, ::1] bitmap = source[6]
    cdef const int64_t[::1] index_bit = source[7]
    cdef const int32_t[::1] index_values = source[8]
    p.format = format_of(source[0], source[1])
    p.dim, p.num_bits, p.interval = source[2], source[3], source[4]
    p.num_rows, p.num_bytes = bitmap.shape[0], stream.shape[0]
    p.stream = &stream[0] if stream.shape[0] else NULL
    p.bitmap = &bitmap[0, 0] if bitmap.shape[0] and bitmap.shape[1] else NULL
    p.index_bit = &index_bit[0] if index_bit.shape[0] else NULL
    p.index_values = &index_values[0] if index_values.shape[0] else NULL
    return p
