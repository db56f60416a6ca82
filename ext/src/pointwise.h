/* Row-wise normalization, ReLU and dropout in one pass, and its backward in one more. */
#ifndef HPCGNN_POINTWISE_H
#define HPCGNN_POINTWISE_H
#include "philox.h"
#include "storage.h"

/* Steps of an activation, in their order. */
enum { NORMALIZE = 1, RECTIFY = 2, DROP = 4 };

/* out = drop(rectify(normalize(rows))), each step where `steps` has it; in float32, rounded once.
 *   normalize: u = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(variance + eps), variance biased, of the row
 *   rectify:   0 where u <= 0, so that NaN stays NaN
 *   drop:      u * scale where the draw of (node_id, first_column + column) is >= threshold, else 0;
 *              threshold = round(p * 2^16), scale = 2^16 / (2^16 - threshold), so E[out] = u exactly
 * moments[2 * i] and [2 * i + 1] are the mean and rstd of row i: written forward, read backward. */
typedef struct {
    const void *rows;
    int64_t num_rows, dim;
    int storage, steps;
    const float *weight, *bias;
    float eps;
    float *moments;
    const int64_t *node_id;
    int64_t first_column; /* of the rows within those that draws are for, a multiple of 8 */
    philox_schedule schedule;
    uint32_t threshold;
    float scale;
} activation;

/* Rows are independent and every sum over a row has sixteen fixed lanes: neither the thread count nor the SIMD level
 * changes a bit. */
void activate_rows(activation a, void *out);

/* Gradients of rows, weight and bias from that of out; masks are drawn again, not stored. Those of weight and bias are
 * summed over num_blocks fixed ranges of rows in `sums`, num_blocks x 3 x dim floats of work space, then by range. */
void activate_backward(activation a, const void *gradient, int64_t num_blocks, float *sums, void *rows_gradient,
                       float *weight_gradient, float *bias_gradient);
#endif
