/* Range, centroids and line of best fit of a row, compiled once per SIMD level. Include it after packed_rows_body.h. */

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
#elif LEVEL_LANES == 8
    const __m128 four = _mm_min_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
#else
    for (int i = 1; i < LANES; i++) x[0] = x[i] < x[0] ? x[i] : x[0];
    return x[0];
#endif
}

INLINE float LEVEL(largest_lane)(vector_f32 x) {
#if LEVEL_LANES == 16
    return _mm512_reduce_max_ps((__m512)x);
#elif LEVEL_LANES == 8
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
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
#pragma GCC unroll 4
    for (int v = 0; v < RANGE_VECTORS; v++) {
        least[v] = most[v] = first;
        zero[v] = (vector_f32){0};
    }
    const int64_t whole = dim / (RANGE_VECTORS * LANES) * (RANGE_VECTORS * LANES);
    for (int64_t j = 0; j < whole; j += RANGE_VECTORS * LANES)
#pragma GCC unroll 4
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

/* (x - low) * unit of the columns j .. j+15 of a row, as SIXTEEN vectors; 0 behind its end. */
INLINE void LEVEL(distances)(const void *row, int64_t j, int64_t dim, int storage, float low, float unit,
                             vector_f32 distance[SIXTEEN]) {
    const vector_f32 pad = LEVEL(broadcast)(low);
#pragma GCC unroll 4
    for (int i = 0; i < SIXTEEN; i++)
        distance[i] = (LEVEL(load_padded)(row, j + i * LANES, dim, storage, pad) - low) * unit;
}

/* A row as distances from its least value, in `unit`s: sums of values would lose the range of a row with a large
 * offset, and sums over a row of huge range would overflow. Sums are in the order of sum_sixteen. */
typedef struct {
    double mean, most, sum;
    float low, unit;
} LEVEL(summary);
#undef row_summary
#define row_summary LEVEL(summary)

INLINE row_summary LEVEL(summary_of)(const void *row, int64_t dim, int storage, float low, float high) {
    const float unit = high - low > LARGEST_SUMMED ? SUMMING_UNIT : 1.0f;
    vector_f32 sum[SIXTEEN] = {{0}}, distance[SIXTEEN];
    for (int64_t j = 0; j < dim; j += 16) {
        LEVEL(distances)(row, j, dim, storage, low, unit, distance);
#pragma GCC unroll 4
        for (int i = 0; i < SIXTEEN; i++) sum[i] += distance[i];
    }
    const double total = LEVEL(sum_sixteen)(sum);
    return (row_summary){total / (double)dim, (double)((high - low) * unit), total, low, unit};
}

/* The two centroids of a row, split at its mean or halfway from the mean to either end, whichever leaves the least
 * energy. Split at the mean alone, differences sent message after message would shed their outliers too slowly. */
#define NUM_SPLITS 3
INLINE row_scale LEVEL(centroid_scale)(const void *row, int64_t dim, int storage, row_summary s, uint8_t *parameters) {
    const float split[NUM_SPLITS] = {(float)s.mean, (float)((s.mean + s.most) / 2), (float)(s.mean / 2)};
    vector_f32 sum[NUM_SPLITS][SIXTEEN] = {{{0}}}, num[NUM_SPLITS][SIXTEEN] = {{{0}}}, distance[SIXTEEN];
    for (int64_t j = 0; j < dim; j += 16) {
        LEVEL(distances)(row, j, dim, storage, s.low, s.unit, distance);
        for (int k = 0; k < NUM_SPLITS; k++)
#pragma GCC unroll 4
            for (int i = 0; i < SIXTEEN; i++) {
                const vector_i32 is_above = distance[i] > split[k];
                sum[k][i] += (vector_f32)(is_above & (vector_i32)distance[i]);
                num[k][i] += (vector_f32)(is_above & 0x3f800000); /* 1.0f */
            }
    }
    double lower = s.mean, upper = s.mean, most_energy = s.sum * s.mean;
    for (int k = 0; k < NUM_SPLITS; k++) {
        const double above = LEVEL(sum_sixteen)(sum[k]), num_above = LEVEL(sum_sixteen)(num[k]);
        const double below = s.sum - above, num_below = (double)dim - num_above;
        if (num_above == 0 || num_below == 0) continue;
        const double energy = above * above / num_above + below * below / num_below;
        if (energy <= most_energy) continue;
        most_energy = energy;
        lower = below / num_below;
        upper = above / num_above;
    }
    return scale_of_line(s.low + lower / s.unit, s.low + upper / s.unit, 1, parameters);
}

/* The line zero_point + step * code that fits a row best, given the codes that its range would yield. */
INLINE row_scale LEVEL(fitted_scale)(const void *row, int64_t dim, int storage, int b, row_summary s,
                                     uint8_t *parameters) {
    const float top = (float)((1 << b) - 1), most = (float)s.most, per_step = most > 0 ? top / most : 0.0f;
    const int is_tiny = per_step > LARGEST_INVERSE;
    const vector_f32 largest = LEVEL(broadcast)(top);
    vector_f32 sum[SIXTEEN] = {{0}}, square[SIXTEEN] = {{0}}, product[SIXTEEN] = {{0}}, distance[SIXTEEN];
    for (int64_t j = 0; j < dim; j += 16) {
        LEVEL(distances)(row, j, dim, storage, s.low, s.unit, distance);
#pragma GCC unroll 4
        for (int i = 0; i < SIXTEEN; i++) {
            const vector_f32 scaled = is_tiny ? distance[i] / most * top : distance[i] * per_step;
            const vector_f32 code = LEVEL(smaller)((scaled + 0x1.8p23f) - 0x1.8p23f, largest); /* to an integer */
            sum[i] += code;
            square[i] += code * code;
            product[i] += code * distance[i];
        }
    }
    const double codes = LEVEL(sum_sixteen)(sum), squares = LEVEL(sum_sixteen)(square);
    const double products = LEVEL(sum_sixteen)(product), spread = (double)dim * squares - codes * codes;
    const double slope = spread > 0 ? ((double)dim * products - codes * s.sum) / spread : 0;
    const double start = (s.sum - slope * codes) / (double)dim;
    return scale_of_line(s.low + start / s.unit, s.low + (start + slope * top) / s.unit, (int)top, parameters);
}
