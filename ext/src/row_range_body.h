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

INLINE float LEVEL(smallest_lane)(vector_f32 x) {
#if LEVEL_LANES == 16
    return _mm512_reduce_min_ps((__m512)x);
#else
    for (int i = 1; i < LANES; i++) x[0] = x[i] < x[0] ? x[i] : x[0];
    return x[0];
#endif
}

INLINE float LEVEL(largest_lane)(vector_f32 x) {
#if LEVEL_LANES == 16
    return _mm512_reduce_max_ps((__m512)x);
#else
    for (int i = 1; i < LANES; i++) x[0] = x[i] > x[0] ? x[i] : x[0];
    return x[0];
#endif
}

#define RANGE_VECTORS 2 /* running ranges; one would wait for its own latency at every vector */

/* Least and largest of a row; the largest is infinite where a value is NaN or infinite. All lanes start at column 0,
 * so that the sign of a row of zeros does not depend on their number. */
INLINE void LEVEL(range_of)(const void *row, int64_t dim, int storage, float *low, float *high) {
    const vector_f32 first = LEVEL(broadcast)(LEVEL(load_first)(row, 0, 1, storage)[0]);
    vector_f32 least[RANGE_VECTORS], most[RANGE_VECTORS], zero[RANGE_VECTORS];
    for (int v = 0; v < RANGE_VECTORS; v++) {
        least[v] = most[v] = first;
        zero[v] = (vector_f32){0};
    }
    const int64_t whole = dim / (RANGE_VECTORS * LANES) * (RANGE_VECTORS * LANES);
    for (int64_t j = 0; j < whole; j += RANGE_VECTORS * LANES)
        for (int v = 0; v < RANGE_VECTORS; v++) {
            const vector_f32 x = LEVEL(load)(row, j + v * LANES, storage);
            least[v] = LEVEL(smaller)(x, least[v]);
            most[v] = LEVEL(larger)(x, most[v]);
            zero[v] *= x; /* stays 0 until a factor is NaN or infinite, and is NaN from there on */
        }
    for (int64_t j = whole; j < dim; j += LANES) {
        const vector_f32 x = LEVEL(load_padded)(row, j, dim, storage, first);
        least[0] = LEVEL(smaller)(x, least[0]);
        most[0] = LEVEL(larger)(x, most[0]);
        zero[0] *= x;
    }
    const vector_u32 is_finite = (vector_u32)(zero[0] + zero[1] == 0.0f);
    const vector_f32 top = LEVEL(larger)(most[1], most[0]);
    *low = LEVEL(smallest_lane)(LEVEL(smaller)(least[1], least[0]));
    *low += 0.0f; /* +0 whichever zero was met first, so that bytes don't depend on the order */
    *high = LEVEL(largest_lane)((vector_f32)((is_finite & (vector_u32)top) | (~is_finite & 0x7f800000)));
}
