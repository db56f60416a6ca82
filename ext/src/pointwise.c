#include "pointwise.h"

#include <math.h>

#define ROWS_A_TASK 64
#define PREFETCH_BYTES 4096
#define STORE_AHEAD 1024 /* bytes */
#define ROWS_TOGETHER 8    /* rows whose moments are found before the first is stored */
#define MOMENTS_TOGETHER 4 /* a divisor of ROWS_TOGETHER */

#define BODY "pointwise_body.h"
#include "levels.h"

typedef void (*forward_function)(const activation *, int64_t, int64_t, void *);
typedef void (*backward_function)(const activation *, const void *, int64_t, int64_t, float *, void *);
static const forward_function FORWARD[] = ALL_LEVELS(activate_range);
static const backward_function BACKWARD[] = ALL_LEVELS(backward_range);

void activate_rows(activation a, void *out) {
    const forward_function run = FORWARD[simd_level()];
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t first = 0; first < a.num_rows; first += ROWS_A_TASK)
        run(&a, first, first + ROWS_A_TASK < a.num_rows ? first + ROWS_A_TASK : a.num_rows, out);
}

/* In float64: there may be a thousand blocks. */
static void add_blocks(const float *sums, int64_t num_blocks, int64_t block_floats, int64_t dim, float *total) {
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < dim; j++) {
        double column = 0.0;
        for (int64_t b = 0; b < num_blocks; b++) column += sums[b * block_floats + j];
        total[j] = (float)column;
    }
}

void activate_backward(activation a, const void *gradient, int64_t num_blocks, float *sums, void *rows_gradient,
                       float *weight_gradient, float *bias_gradient) {
    const backward_function run = BACKWARD[simd_level()];
    const int64_t block_floats = 3 * a.dim;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t b = 0; b < num_blocks; b++)
        run(&a, gradient, b * a.num_rows / num_blocks, (b + 1) * a.num_rows / num_blocks, sums + b * block_floats,
            rows_gradient);
    if (!(a.steps & NORMALIZE)) return;
    add_blocks(sums, num_blocks, block_floats, a.dim, weight_gradient);
    add_blocks(sums + a.dim, num_blocks, block_floats, a.dim, bias_gradient);
}
