"""Adaptive-Package streams. A shell over ext/src/package.c; contracts are checked in hpcgnn.lowbit.package."""

from libc.stdint cimport int32_t, int64_t, uint8_t

include "package_source.pxi"

cdef extern from "package.h":
    enum:
        PACKAGES_NO_MEMORY
    ctypedef struct package_place:
        int64_t bit, num_values, width
    int64_t c_count_codes "count_codes" (const uint8_t *, int64_t, int64_t, const uint8_t *, int, int32_t *) nogil
    int64_t c_measure_stream "measure_stream" (package_format, package_place, const int32_t *, const uint8_t *,
                                               int64_t) nogil
    void c_append_rows "append_rows" (package_format, package_place *, const uint8_t *, const uint8_t *, int64_t,
                                      int64_t, int64_t, int64_t, uint8_t *, uint8_t *, int64_t *, int32_t *) nogil
    package_fault c_decode_rows "decode_rows" (const packages *, int64_t, int64_t, uint8_t *, float *, const float *,
                                               uint8_t *) nogil
    int64_t c_plan_positions "plan_positions" (const uint8_t *, int64_t, int64_t, int64_t, int32_t *, int64_t *,
                                               uint8_t *) nogil
    void c_write_positions "write_positions" (const uint8_t *, int64_t, int64_t, int64_t, const int32_t *,
                                              const int64_t *, const uint8_t *, int64_t, uint8_t *, int64_t *) nogil
    package_fault c_read_bitmaps "read_bitmaps" (const packages *, int64_t, int64_t, uint8_t *) nogil
    package_fault c_decode_chosen "decode_chosen" (const packages *, const int64_t *, int64_t, uint8_t *) nogil


cdef package_place place_of(const int64_t[::1] state):
    cdef package_place place
    place.bit, place.num_values, place.width = state[0], state[1], state[2]
    return place

cdef uint8_t *bytes_of(uint8_t[:, ::1] rows) noexcept:
    return NULL if rows is None or rows.shape[0] == 0 or rows.shape[1] == 0 else &rows[0, 0]

cdef float *floats_of(float[:, ::1] rows) noexcept:
    return NULL if rows is None or rows.shape[0] == 0 or rows.shape[1] == 0 else &rows[0, 0]

cdef const float *scales_of(const float[::1] scale) noexcept:
    if scale is None or scale.shape[0] == 0:
        return NULL
    return &scale[0]

def count_codes(const uint8_t[:, ::1] codes, const uint8_t[::1] width, bint is_signed, int32_t[::1] counts):
    """Count the non-zero codes of each row; return the first row with a code too large for the row's width, or -1."""
    cdef int64_t num_rows = codes.shape[0], dim = codes.shape[1], bad
    if num_rows == 0 or dim == 0:
        return -1
    with nogil:
        bad = c_count_codes(&codes[0, 0], num_rows, dim, &width[0], is_signed, &counts[0])
    return -1 if bad == num_rows else bad


def measure_stream(const int64_t[::1] lengths, const int64_t[::1] state, const int32_t[::1] counts,
                   const uint8_t[::1] width):
    """Bits of a stream after rows with these counts, appended at `state`: the open package's bit, values and width."""
    cdef package_format form = format_of(lengths, False)
    cdef package_place place = place_of(state)
    cdef int64_t num_rows = counts.shape[0], bits
    cdef const int32_t *count = &counts[0] if num_rows else NULL
    cdef const uint8_t *bit_width = &width[0] if num_rows else NULL
    with nogil:
        bits = c_measure_stream(form, place, count, bit_width, num_rows)
    return bits


def append_rows(const int64_t[::1] lengths, bint is_signed, int64_t[::1] state, const uint8_t[:, ::1] codes,
                const uint8_t[::1] width, int64_t first_row, int64_t interval, uint8_t[::1] stream,
                uint8_t[:, ::1] bitmap, int64_t[::1] index_bit, int32_t[::1] index_values):
    """Append rows to the stream; note their bitmaps and write their index entries; `state` moves on."""
    cdef package_format form = format_of(lengths, is_signed)
    cdef package_place place = place_of(state)
    cdef int64_t num_rows = codes.shape[0], dim = codes.shape[1]
    cdef const uint8_t *code = &codes[0, 0] if num_rows and dim else NULL
    cdef uint8_t *bits = bytes_of(bitmap)
    if num_rows == 0:
        return
    with nogil:
        c_append_rows(form, &place, code, &width[0], num_rows, dim, first_row, interval, &stream[0], bits,
                      &index_bit[0], &index_values[0])
    state[0], state[1], state[2] = place.bit, place.num_values, place.width


def plan_positions(const uint8_t[:, ::1] bitmap, int64_t dim, int64_t interval, int32_t[::1] counts,
                   int64_t[::1] gap_bits, uint8_t[::1] count_width):
    """Plan how the positions of whole blocks are stored; fill counts, gap_bits and count_width, return all bits."""
    cdef int64_t num_rows = bitmap.shape[0], bits
    cdef const uint8_t *rows = &bitmap[0, 0] if num_rows and bitmap.shape[1] else NULL
    if num_rows == 0:
        return 0
    with nogil:
        bits = c_plan_positions(rows, num_rows, dim, interval, &counts[0], &gap_bits[0], &count_width[0])
    return bits


def write_positions(const uint8_t[:, ::1] bitmap, int64_t dim, int64_t interval, const int32_t[::1] counts,
                    const int64_t[::1] gap_bits, const uint8_t[::1] count_width, int64_t bit, uint8_t[::1] positions,
                    int64_t[::1] index_position):
    """Write positions as planned, beginning at `bit`; write the bit where each block begins to index_position."""
    cdef int64_t num_rows = bitmap.shape[0]
    cdef const uint8_t *rows = &bitmap[0, 0] if num_rows and bitmap.shape[1] else NULL
    if num_rows == 0:
        return
    with nogil:
        c_write_positions(rows, num_rows, dim, interval, &counts[0], &gap_bits[0], &count_width[0], bit, &positions[0],
                          &index_position[0])


cdef found_of(package_fault fault):
    if fault.code == PACKAGES_NO_MEMORY:
        raise MemoryError("no memory for the columns of a row of packages")
    return fault.code, fault.row


def read_bitmaps(source, int64_t first, int64_t last, uint8_t[:, ::1] bitmap):
    """Bitmaps of rows [first, last) into bitmap; returns (fault, row)."""
    cdef packages p = packages_of(source)
    cdef uint8_t *bits = bytes_of(bitmap)
    cdef package_fault fault
    with nogil:
        fault = c_read_bitmaps(&p, first, last, bits)
    return found_of(fault)


def decode_rows(source, int64_t first, int64_t last, uint8_t[:, ::1] codes, float[:, ::1] rows,
                const float[::1] scale, uint8_t[::1] width):
    """Decode rows [first, last) into codes, rows and width, each of which may be None; returns (fault, row)."""
    cdef packages p = packages_of(source)
    cdef uint8_t *row_width = NULL if width is None or width.shape[0] == 0 else &width[0]
    cdef uint8_t *code = bytes_of(codes)
    cdef float *value = floats_of(rows)
    cdef const float *row_scale = scales_of(scale)
    cdef package_fault fault
    with nogil:
        fault = c_decode_rows(&p, first, last, code, value, row_scale, row_width)
    return found_of(fault)


def decode_chosen(source, const int64_t[::1] node, uint8_t[:, ::1] codes):
    """Decode the rows `node` into codes; returns (fault, row)."""
    cdef packages p = packages_of(source)
    cdef uint8_t *code = bytes_of(codes)
    cdef int64_t num_chosen = node.shape[0]
    cdef const int64_t *chosen = &node[0] if num_chosen else NULL
    cdef package_fault fault
    with nogil:
        fault = c_decode_chosen(&p, chosen, num_chosen, code)
    return found_of(fault)
