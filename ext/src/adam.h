/* One step of Adam over flat buffers and checks of its values, all in one pass. */
#ifndef HPCGNN_ADAM_H
#define HPCGNN_ADAM_H
#include <stdint.h>

/* Factors of one step: those of its moments, and the corrections for moments that began at zero. */
typedef struct {
    float mean_weight, square_decay, square_weight, unbiased, epsilon, rate;
} adam_factors;

/* Magnitudes are the bits of float32 without the sign. Since NaN is above infinity, the largest is finite only if all
 * are. The two halves of the hash are sums of mixed bits modulo 2^32, the same in any order. */
typedef struct {
    uint32_t largest_gradient, largest_result, hash_low, hash_high;
} adam_check;

adam_check adam_step(float *weights, const float *gradient, const float *lr, const float *decay, float *mean,
                     float *square, int64_t num_weights, adam_factors factors);
#endif
