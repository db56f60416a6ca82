#include "adam.h"

#define BLOCK_WEIGHTS 8192 /* a thread's share at least: less takes longer to hand out than to compute */

#define BODY "adam_body.h"
#include "levels.h"

typedef adam_check (*step_function)(float *, const float *, const float *, const float *, float *, float *, int64_t,
                                    int64_t, adam_factors);
static const step_function STEP_BLOCK[] = ALL_LEVELS(step_block);

adam_check adam_step(float *weights, const float *gradient, const float *lr, const float *decay, float *mean,
                     float *square, int64_t num_weights, adam_factors factors) {
    const step_function step_block = STEP_BLOCK[simd_level()];
    const int64_t num_blocks = (num_weights + BLOCK_WEIGHTS - 1) / BLOCK_WEIGHTS;
    uint32_t largest_gradient = 0, largest_result = 0, low = 0, high = 0;
#pragma omp parallel for schedule(static) if (num_blocks > 1) reduction(max : largest_gradient, largest_result) \
    reduction(+ : low, high)
    for (int64_t b = 0; b < num_blocks; b++) {
        const int64_t first = b * BLOCK_WEIGHTS, rest = num_weights - first;
        const adam_check check = step_block(weights, gradient, lr, decay, mean, square, first,
                                            first + (rest < BLOCK_WEIGHTS ? rest : BLOCK_WEIGHTS), factors);
        largest_gradient = check.largest_gradient > largest_gradient ? check.largest_gradient : largest_gradient;
        largest_result = check.largest_result > largest_result ? check.largest_result : largest_result;
        low += check.hash_low;
        high += check.hash_high;
    }
    return (adam_check){largest_gradient, largest_result, low, high};
}
