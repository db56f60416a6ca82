"""Rows of any storage to wire bytes and back. A shell over ext/src/quantization.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t

cdef extern from "quantization.h":
    enum: ROUND_STOCHASTIC, ROUND_NEAREST
    ctypedef struct counter_key:
        uint32_t seed, epoch, stream
    ctypedef struct message_rows:
        int64_t num_rows, dim, num_table_rows, num_bytes
        int storage, is_rotated
        counter_key rotation
        const int32_t *row_index
        const int64_t *node_id
        const uint8_t *bit_width
        const int64_t *payload_offset
        const int64_t *parameter_offset
    int64_t c_quantize_rows "quantize_rows" (const void *, message_rows, counter_key, int, uint8_t *) nogil
    int64_t c_dequantize_rows "dequantize_rows" (const uint8_t *, message_rows, int, void *) nogil

cdef message_rows describe(int storage, int64_t dim, int64_t num_table_rows, int64_t num_bytes,
                           const int32_t[::1] row_index, const int64_t[::1] node_id, const uint8_t[::1] bit_width,
                           const int64_t[::1] payload_offset, const int64_t[::1] parameter_offset, bint is_rotated,
                           uint32_t seed, uint32_t epoch, uint32_t rotation_stream) noexcept:
    cdef message_rows m
    m.is_rotated = is_rotated
    m.rotation.seed, m.rotation.epoch, m.rotation.stream = seed, epoch, rotation_stream
    m.num_rows = row_index.shape[0]
    m.dim, m.storage, m.num_table_rows, m.num_bytes = dim, storage, num_table_rows, num_bytes
    m.row_index = &row_index[0]
    m.node_id = &node_id[0]
    m.bit_width = &bit_width[0]
    m.payload_offset = &payload_offset[0]
    m.parameter_offset = &parameter_offset[0]
    return m


def quantize_rows(const uint8_t[:, ::1] rows, int storage, int64_t dim, const int32_t[::1] row_index,
                  const int64_t[::1] node_id, const uint8_t[::1] bit_width, const int64_t[::1] payload_offset,
                  const int64_t[::1] parameter_offset, uint32_t seed, uint32_t epoch, uint32_t stream,
                  bint is_nearest, bint is_rotated, uint32_t rotation_stream, uint8_t[::1] message):
    """Write one message, rounded to the nearest or by draws; see ext/src/quantization.h for what is returned."""
    if row_index.shape[0] == 0 or dim == 0:
        return -1
    cdef message_rows m = describe(storage, dim, rows.shape[0], message.shape[0], row_index, node_id, bit_width,
                                   payload_offset, parameter_offset, is_rotated, seed, epoch, rotation_stream)
    cdef counter_key key
    cdef int64_t first_bad
    key.seed, key.epoch, key.stream = seed, epoch, stream
    with nogil:
        first_bad = c_quantize_rows(&rows[0, 0], m, key, ROUND_NEAREST if is_nearest else ROUND_STOCHASTIC,
                                    &message[0])
    return first_bad


def dequantize_rows(const uint8_t[::1] message, const int32_t[::1] row_index, const int64_t[::1] node_id,
                    const uint8_t[::1] bit_width, const int64_t[::1] payload_offset,
                    const int64_t[::1] parameter_offset, uint32_t seed, uint32_t epoch, bint is_rotated,
                    uint32_t rotation_stream, bint accumulate, int storage, int64_t dim, uint8_t[:, ::1] rows):
    """Read one message into rows[row_index], assigning or adding; see ext/src/quantization.h for what is returned."""
    if row_index.shape[0] == 0 or dim == 0:
        return -1
    cdef message_rows m = describe(storage, dim, rows.shape[0], message.shape[0], row_index, node_id, bit_width,
                                   payload_offset, parameter_offset, is_rotated, seed, epoch, rotation_stream)
    cdef int64_t outside
    with nogil:
        outside = c_dequantize_rows(&message[0], m, accumulate, &rows[0, 0])
    return outside
