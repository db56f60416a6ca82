/* Kernel body, compiled once a SIMD level by code_attention.c; integers, so that every level has the same bits. */
#undef INLINE
#define INLINE static inline __attribute__((always_inline))

INLINE int64_t LEVEL(leaky)(int64_t score) { return score < 0 ? score / 5 : score; }

/* 2^WEIGHT_BITS exp(-distance), rounded. */
INLINE int32_t LEVEL(weight_of)(const code_attention *a, int64_t distance) {
    if (distance >= FARTHEST) return 0;
    const int64_t exponent = ((distance >> (SCORE_BITS - STEP_BITS)) * LOG2_E) >> TABLE_BITS;
    const int shift = (int)(exponent >> STEP_BITS) + 2 * TABLE_BITS - WEIGHT_BITS;
    const int64_t product = a->coarse[(exponent >> 10) & 1023] * a->fine[exponent & 1023];
    return (int32_t)((product + (1LL << (shift - 1))) >> shift);
}

INLINE int64_t LEVEL(largest_score)(const code_attention *a, int64_t begin, int64_t end, int64_t own, int64_t head) {
    int64_t largest = a->source[own * a->num_heads + head];
    for (int64_t e = begin; e < end; e++) {
        const int64_t score = a->source[a->indices[e] * a->num_heads + head];
        largest = score > largest ? score : largest;
    }
    return LEVEL(leaky)(a->target[own * a->num_heads + head] + largest);
}

/* Adds a weighted row to the sums; a product of a weight and a code fits 31 bits. */
INLINE int64_t LEVEL(add_row)(const code_attention *a, int64_t u, int64_t target, int64_t largest, int64_t head,
                              int64_t dim, int64_t *restrict sums) {
    const int64_t score = LEVEL(leaky)(target + a->source[u * a->num_heads + head]);
    const int32_t weight = LEVEL(weight_of)(a, largest - score);
    const int8_t *row = a->codes + u * a->dim + head * dim;
    if (weight)
        for (int64_t j = 0; j < dim; j++) sums[j] += (int64_t)(weight * (int32_t)row[j]);
    return weight;
}

static int LEVEL(attend_row)(const code_attention *a, int64_t v, int64_t *sums, float *out) {
    const int64_t begin = a->indptr[v], end = a->indptr[v + 1], own = a->first + v, dim = a->dim / a->num_heads;
    if (begin < 0 || begin > end || end > a->num_entries) return 2;
    for (int64_t e = begin; e < end; e++)
        if (a->indices[e] < 0 || a->indices[e] >= a->num_codes) return 1;
    for (int64_t head = 0; head < a->num_heads; head++) {
        const int64_t target = a->target[own * a->num_heads + head];
        const int64_t largest = LEVEL(largest_score)(a, begin, end, own, head);
        memset(sums, 0, (size_t)dim * sizeof(int64_t));
        int64_t total = LEVEL(add_row)(a, own, target, largest, head, dim, sums);
        for (int64_t e = begin; e < end; e++)
            total += LEVEL(add_row)(a, a->indices[e], target, largest, head, dim, sums);
        for (int64_t j = 0; j < dim; j++) out[head * dim + j] = (float)((double)sums[j] / (double)total);
    }
    return 0;
}
