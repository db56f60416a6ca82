/* Range of a row of any storage, compiled once a SIMD level. Include it after packed_rows_body.h. */

/* `x` where the column j + lane is inside a row of dim columns, `pad` behind its end. */
INLINE vector_f32 LEVEL(load_padded)(const void *row, int64_t j, int64_t dim, int storage, vector_f32 pad) {
    if (j + LANES <= dim) return LEVEL(load)(row, j, storage);
    if (j >= dim) return pad;
    const vector_u32 is_inside = (vector_u32)(LEVEL(lane_numbers)() < (uint32_t)(dim - j));
    const vector_u32 x = (vector_u32)LEVEL(load_first)(row, j, dim - j, storage);
    return (vector_f32)((is_inside & x) | (~is_inside & (vector_u32)pad));
}

/* x < m ? x : m, and x > m ? x : m. */
INLINE vector_f32 LEVEL(smaller)(vector_f32 x, vector_f32 m) {
#if LEVEL_LANES == 16
    return (vector_f32)_mm512_min_ps((__m512)x, (__m512)m);
#elif LEVEL_LANES == 8
    return (vector_f32)_mm256_min_ps((__m256)x, (__m256)m);
#else
    const vector_u32 is_smaller = (vector_u32)(x < m);
    return (vector_f32)((is_smaller & (vector_u32)x) | (~is_smaller & (vector_u32)m));
#endif
}

INLINE vector_f32 LEVEL(larger)(vector_f32 x, vector_f32 m) {
#if LEVEL_LANES == 16
    return (vector_f32)_mm512_max_ps((__m512)x, (__m512)m);
#elif LEVEL_LANES == 8
    return (vector_f32)_mm256_max_ps((__m256)x, (__m256)m);
#else
    const vector_u32 is_larger = (vector_u32)(x > m);
    return (vector_f32)((is_larger & (vector_u32)x) | (~is_larger & (vector_u32)m));
#endif
}

#define RANGE_VECTORS 4 /* running minima; one would wait for its own latency at every vector */

typedef struct {
    vector_f32 low[RANGE_VECTORS], high[RANGE_VECTORS], zero[RANGE_VECTORS];
} LEVEL(running);
#undef running_range
#define running_range LEVEL(running)

INLINE void LEVEL(extend_range)(running_range *r, const void *row, int64_t j, int64_t dim, int storage, vector_f32 pad) {
    for (int v = 0; v < RANGE_VECTORS; v++) {
        const vector_f32 x = LEVEL(load_padded)(row, j + v * LANES, dim, storage, pad);
        r->low[v] = LEVEL(smaller)(x, r->low[v]);
        r->high[v] = LEVEL(larger)(x, r->high[v]);
        r->zero[v] *= x; /* stays 0 until a factor is NaN or infinite, and is NaN from there on */
    }
}

/* Least and largest of a row. Returns 0 where a value is NaN, infinite or too large.
 * All lanes start at column 0, so that the signs of zeros do not depend on the number of lanes. */
INLINE int LEVEL(range_of)(const void *row, int64_t dim, int storage, float *low, float *high) {
    const vector_f32 first = LEVEL(broadcast)(LEVEL(load_first)(row, 0, 1, storage)[0]);
    running_range r;
    for (int v = 0; v < RANGE_VECTORS; v++) r.low[v] = r.high[v] = first, r.zero[v] = (vector_f32){0};
    int64_t j = 0;
    for (; j + RANGE_VECTORS * LANES <= dim; j += RANGE_VECTORS * LANES)
        LEVEL(extend_range)(&r, row, j, j + RANGE_VECTORS * LANES, storage, first);
    if (j < dim) LEVEL(extend_range)(&r, row, j, dim, storage, first);
    for (int v = 1; v < RANGE_VECTORS; v++) {
        r.low[0] = LEVEL(smaller)(r.low[v], r.low[0]);
        r.high[0] = LEVEL(larger)(r.high[v], r.high[0]);
        r.zero[0] += r.zero[v];
    }
    float zero = 0.0f;
    *low = r.low[0][0];
    *high = r.high[0][0];
    for (int i = 0; i < LANES; i++) {
        *low = r.low[0][i] < *low ? r.low[0][i] : *low;
        *high = r.high[0][i] > *high ? r.high[0][i] : *high;
        zero += r.zero[0][i];
    }
    *low += 0.0f; /* +0 whichever zero was met first, so that bytes don't depend on the order */
    return zero == 0.0f && *low >= -LARGEST_MAGNITUDE && *high <= LARGEST_MAGNITUDE;
}
