"""Products of matrices held as planes of bits. A shell over ext/src/bit_gemm.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "bit_gemm.h":
    enum:
        OUT_SUMS, OUT_VALUES, OUT_BITS
    ctypedef unsigned int uint32_t
    ctypedef struct bit_rows:
        const uint32_t *words
        int64_t num_rows, num_steps
        int num_planes
        const int64_t *tile_begin
        const int32_t *tile_step
        int skips_zeros, reuses_tiles
    ctypedef struct bit_columns:
        const uint32_t *words
        int64_t num_lines
        int num_planes
    ctypedef struct product_out:
        int kind
        void *out
        int64_t num_rows, num_columns
        const float *row_step
        const float *row_zero
        const float *row_sum
        const float *column_step
        const float *column_zero
        const float *column_sum
        float length
        const float *gain
        const float *bias
        int gain_is_by_row, bias_is_by_row, has_relu
        float low, step, offset
        int bit_width
        int64_t num_padded, line_words
    int64_t c_bit_product "bit_product" (bit_rows, bit_columns, product_out) nogil

cdef const float *floats(const float[::1] values) noexcept:
    if values is None or values.shape[0] == 0:
        return NULL
    return &values[0]


cdef class Left:
    """The left matrix: planes (planes, padded rows, words), or one plane of tiles (tiles, 8, 4)."""
    cdef bit_rows rows
    cdef object kept

    def __init__(self, const int32_t[:, :, ::1] words, int64_t num_rows, int64_t num_steps,
                 const int64_t[::1] tile_begin=None, const int32_t[::1] tile_step=None, bint skips_zeros=False,
                 bint reuses_tiles=False):
        self.kept = (words, tile_begin, tile_step)
        self.rows.words = NULL
        self.rows.tile_begin, self.rows.tile_step = NULL, NULL
        if words.shape[0] and words.shape[1] and words.shape[2]:
            self.rows.words = <const uint32_t *>&words[0, 0, 0]
        self.rows.num_rows, self.rows.num_steps = num_rows, num_steps
        self.rows.num_planes = 1 if tile_begin is not None else words.shape[0]
        if tile_begin is not None:
            self.rows.tile_begin = &tile_begin[0]
            if tile_step.shape[0]:
                self.rows.tile_step = &tile_step[0]
        self.rows.skips_zeros, self.rows.reuses_tiles = skips_zeros, reuses_tiles


cdef class Scaling:
    """How sums become values: for rows and for columns, vectors of step, zero point and step * (sum of codes)."""
    cdef product_out out
    cdef object kept

    def __init__(self, row, column, float length, const float[::1] gain, bint gain_is_by_row, const float[::1] bias,
                 bint bias_is_by_row, bint has_relu):
        cdef const float[::1] row_step = row[0], row_zero = row[1], row_sum = row[2]
        cdef const float[::1] column_step = column[0], column_zero = column[1], column_sum = column[2]
        self.kept = (row, column, gain, bias)
        self.out.row_step, self.out.row_zero, self.out.row_sum = floats(row_step), floats(row_zero), floats(row_sum)
        self.out.column_step, self.out.column_zero = floats(column_step), floats(column_zero)
        self.out.column_sum, self.out.length = floats(column_sum), length
        self.out.gain, self.out.bias = floats(gain), floats(bias)
        self.out.gain_is_by_row, self.out.bias_is_by_row, self.out.has_relu = gain_is_by_row, bias_is_by_row, has_relu


cdef int64_t run(Left left, const int32_t[:, :, ::1] right, product_out out) except -2:
    cdef bit_columns columns
    cdef int64_t num_multiplied = 0
    if out.num_rows == 0 or out.num_columns == 0:
        return 0
    columns.words = NULL
    if right.shape[0] and right.shape[1] and right.shape[2]:
        columns.words = <const uint32_t *>&right[0, 0, 0]
    columns.num_lines, columns.num_planes = right.shape[1], right.shape[0]
    with nogil:
        num_multiplied = c_bit_product(left.rows, columns, out)
    if num_multiplied < 0:
        raise MemoryError("no memory for the panels of a product of bits")
    return num_multiplied


def multiply_to_sums(Left left, const int32_t[:, :, ::1] right, int32_t[:, ::1] sums):
    """Write integer sums to `sums`; return the number of tiles multiplied, or of steps of 8 rows without tiles."""
    cdef product_out out
    out.kind, out.num_rows, out.num_columns = OUT_SUMS, sums.shape[0], sums.shape[1]
    if out.num_rows and out.num_columns:
        out.out = &sums[0, 0]
    return run(left, right, out)


def multiply_to_values(Left left, const int32_t[:, :, ::1] right, Scaling scaling, float[:, ::1] values):
    """Write float32 values to `values`."""
    cdef product_out out = scaling.out
    out.kind, out.num_rows, out.num_columns = OUT_VALUES, values.shape[0], values.shape[1]
    if out.num_rows and out.num_columns:
        out.out = &values[0, 0]
    return run(left, right, out)


def multiply_to_bits(Left left, const int32_t[:, :, ::1] right, Scaling scaling, int64_t num_rows, int64_t num_columns,
                     float low, float step, float offset, int32_t[:, :, ::1] words):
    """Pack the values' codes row by row into planes `words` (planes, padded rows, words), which hold zeros before."""
    cdef product_out out = scaling.out
    out.kind, out.num_rows, out.num_columns = OUT_BITS, num_rows, num_columns
    out.low, out.step, out.offset, out.bit_width = low, step, offset, words.shape[0]
    out.num_padded, out.line_words = words.shape[1], words.shape[2]
    if num_rows and num_columns:
        out.out = &words[0, 0, 0]
    return run(left, right, out)
