/* Exact integer sums to values or to the codes that the next product reads: scales, bias, LayerNorm and ReLU between.
 *
 *   x[i, j] = source[i, j] row_scale[i] column_scale[j] + own[i, j] own_row_scale[i] own_column_scale[j] + bias[j]
 *   source  = rows (float32), or float(sums + near) + epsilon float(near) (int32, int8)
 *   x       = LayerNorm(x) where there is a weight, then max(0, x) where `rectifies`
 *   code    = sign(x) min(floor(|x| / step[i] + 0.5), limit[i])
 *
 * A row reads nothing of another, and its operations are float32 in one order at every SIMD level, so that its bits do
 * not depend on which rows stand beside it. Rows are independent tasks. */
#ifndef HPCGNN_INTEGER_ROWS_H
#define HPCGNN_INTEGER_ROWS_H
#include <stdint.h>

enum { ROW_IS_FINE = 0, ROW_HAS_NAN = 1, ROW_IS_NEGATIVE = 2, NO_SCRATCH = 4 };

/* A pointer that is NULL leaves its part of the formula out; one of `rows` and `sums` is there. */
typedef struct {
    int64_t num_rows, dim;
    const float *rows, *row_scale, *column_scale;
    const int32_t *sums, *own;
    const int8_t *near;
    const float *own_row_scale, *own_column_scale, *bias, *norm_weight, *norm_bias;
    float epsilon, norm_eps;
    int rectifies;
} integer_rows;

/* step and limit advance by `stride`, 1 or 0, per row. A negative value is a fault if codes are unsigned. */
typedef struct {
    uint8_t *codes;
    const float *step, *limit;
    int64_t stride;
    int is_signed;
    float *values;
} row_target;

/* Bits of the faults above, of all rows. */
int rescale_rows(integer_rows source, row_target target);
#endif
