# Packages as hpcgnn.lowbit.package.PackedRows.source gives them, for the shells that read them.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "package.h":
    ctypedef struct package_format:
        int64_t lengths[3]
        int is_signed
    ctypedef struct packages:
        package_format format
        int64_t num_rows, dim, num_bits, num_bytes, interval
        const uint8_t *stream
        const int64_t *index_bit
        const int32_t *index_values
        int64_t num_position_bits, num_position_bytes
        const uint8_t *positions
        const int64_t *index_position
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
    cdef const uint8_t[::1] stream = source[7]
    cdef const uint8_t[::1] positions = source[8]
    cdef const int64_t[::1] index_bit = source[9]
    cdef const int32_t[::1] index_values = source[10]
    cdef const int64_t[::1] index_position = source[11]
    p.format = format_of(source[0], source[1])
    p.num_rows, p.dim, p.num_bits, p.num_position_bits, p.interval = source[2:7]
    p.num_bytes, p.num_position_bytes = stream.shape[0], positions.shape[0]
    p.stream = &stream[0] if stream.shape[0] else NULL
    p.positions = &positions[0] if positions.shape[0] else NULL
    p.index_bit = &index_bit[0] if index_bit.shape[0] else NULL
    p.index_values = &index_values[0] if index_values.shape[0] else NULL
    p.index_position = &index_position[0] if index_position.shape[0] else NULL
    return p
