/* Finishes the sums of a product of bits: the result is the sums, values, or planes of the values' codes.
 *
 *   value = (row_step * column_step) * sum + ((row_zero * column_sum + row_sum * column_zero)
 *           + length * (row_zero * column_zero)), then gain, bias and ReLU; sums of codes are multiplied by steps
 * each operation rounded alone in this order, so values and codes have the bits of the host's (QGTC, Section 4.5). A
 * warp ends one row of 32 columns at a time: neighboring lanes store neighboring columns, and 32 codes are one word per
 * plane. */
#ifndef HPCGNN_PRODUCT_END_CUH
#define HPCGNN_PRODUCT_END_CUH
#include "bit_codes.cuh"

#define END_COLUMNS 32 /* of a warp: a word of a plane */
#define SUM_STRIDE 40  /* of a row of sums in shared memory; rows that are stored together lie in different banks */

/* One of sums, values and planes is not NULL. */
struct ProductEnd {
    int64_t num_rows, num_columns;
    int32_t *sums;
    float *values;
    uint32_t *planes; /* (bit_width, num_padded, line_words), every word is written */
    const float *row_step, *row_zero, *row_sum, *column_step, *column_zero, *column_sum;
    float length;
    const float *gain, *bias; /* of columns, or of rows, or NULL */
    int32_t is_by_row, has_relu;
    float low, step, offset;
    int32_t bit_width;
    int64_t num_padded, line_words;
};

/* The parameters of a kernel that a ProductEnd is made of, in its order. */
#define PRODUCT_END \
    {num_rows, num_columns, sums, values, planes, row_step, row_zero, row_sum, column_step, column_zero, column_sum, \
     length, gain, bias, is_by_row, has_relu, low, step, offset, bit_width, num_padded, line_words}

DEVICE float value_of(const ProductEnd &end, int64_t row, int64_t column, int32_t sum) {
    const float row_zero = end.row_zero[row], column_zero = end.column_zero[column];
    const float zeros = __fadd_rn(__fadd_rn(__fmul_rn(row_zero, end.column_sum[column]),
                                            __fmul_rn(end.row_sum[row], column_zero)),
                                  __fmul_rn(end.length, __fmul_rn(row_zero, column_zero)));
    float value = __fadd_rn(__fmul_rn(__fmul_rn(end.row_step[row], end.column_step[column]), (float)sum), zeros);
    const int64_t vector_index = end.is_by_row ? row : column;
    if (end.gain) value = __fmul_rn(value, end.gain[vector_index]);
    if (end.bias) value = __fadd_rn(value, end.bias[vector_index]);
    return end.has_relu && !(value > 0.0f) ? 0.0f : value;
}

/* All lanes of a warp, one column each, neighbors in lanes; column of lane 0 is a multiple of 32. */
DEVICE void end_row(const ProductEnd &end, int64_t row, int64_t column, int32_t sum) {
    const bool is_inside = row < end.num_rows && column < end.num_columns;
    if (end.sums) {
        if (is_inside) end.sums[row * end.num_columns + column] = sum;
        return;
    }
    const float value = is_inside ? value_of(end, row, column, sum) : 0.0f;
    if (end.values) {
        if (is_inside) end.values[row * end.num_columns + column] = value;
    } else if (row < end.num_padded) {
        const float largest = (float)((1 << end.bit_width) - 1);
        const uint32_t code = is_inside ? code_of(value, end.low, end.step, end.offset, largest) : 0;
        store_planes(code, end.bit_width, end.planes + row * end.line_words + column / 32,
                     end.num_padded * end.line_words);
    }
}
#endif
