/* One step of Adam over flat buffers, with what tells whether it went well: all in one pass over them. */
#ifndef HPCGNN_ADAM_H
#define HPCGNN_ADAM_H
#include <stdint.h>

/* Numbers of one step: of its moments, and of the corrections for having begun at zero. */
typedef struct {
    float mean_weight, square_decay, square_weight, unbiased, epsilon, rate;
} adam_factors;

/* Magnitudes are bits of float32 without the sign, so the largest of them is finite where all are: NaN is above
 * infinity. The two halves of the hash are sums of mixed bits modulo 2^32, the same in any order. */
typedef struct {
    uint32_t largest_gradient, largest_result, hash_low, hash_high;
} adam_check;

adam_check adam_step(float *weights, const float *gradient, const float *lr, const float *decay, float *mean,
                     float *square, int64_t num_weights, adam_factors factors);
#endif
