/* Kernel body, compiled once per SIMD level by adam.c. The loop is plain: the compiler makes vectors of it. */

#undef INLINE
#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t LEVEL(bits_of)(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE uint32_t LEVEL(larger)(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Each of the two sums is over bijections of the bits of one weight, so a change of one weight changes both. */
INLINE void LEVEL(add_to_hash)(adam_check *check, uint32_t bits, uint32_t index) {
    uint32_t mixed = bits ^ (index * 0x9e3779b1u);
    mixed = (mixed ^ (mixed >> 16)) * 0x85ebca6bu;
    mixed ^= mixed >> 13;
    check->hash_low += mixed;
    mixed *= 0xc2b2ae35u;
    check->hash_high += mixed ^ (mixed >> 16);
}

static adam_check LEVEL(step_block)(float *restrict weights, const float *restrict gradient, const float *restrict lr,
                                    const float *restrict decay, float *restrict mean, float *restrict square,
                                    int64_t first, int64_t last, adam_factors f) {
    adam_check check = {0, 0, 0, 0};
    for (int64_t i = first; i < last; i++) {
        const float slope = gradient[i] + decay[i] * weights[i];
        const float m = mean[i] + f.mean_weight * (slope - mean[i]);
        const float s = square[i] * f.square_decay + f.square_weight * slope * slope;
        const float w = weights[i] + f.rate * lr[i] * (m / (__builtin_sqrtf(s) / f.unbiased + f.epsilon));
        mean[i] = m;
        square[i] = s;
        weights[i] = w;
        const uint32_t bits = LEVEL(bits_of)(w);
        const uint32_t moments = LEVEL(larger)(LEVEL(bits_of)(m) & 0x7fffffff, LEVEL(bits_of)(s) & 0x7fffffff);
        check.largest_result = LEVEL(larger)(check.largest_result, LEVEL(larger)(moments, bits & 0x7fffffff));
        check.largest_gradient = LEVEL(larger)(check.largest_gradient, LEVEL(bits_of)(gradient[i]) & 0x7fffffff);
        LEVEL(add_to_hash)(&check, bits, (uint32_t)i);
    }
    return check;
}
