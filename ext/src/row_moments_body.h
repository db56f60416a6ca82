/* Mean and variance of a row of values for LayerNorm, in one order at every level. Included by kernel bodies once per
 * SIMD level, after vector.h; columns from dim on, up to a multiple of LANES, are zero. */
#include <math.h>

#undef GROUP
#define GROUP 16

/* Sixteen running sums, whatever the lanes of a register. */
INLINE float LEVEL(row_sum)(const float *row, int64_t dim) {
    vector_f32 sum[SIXTEEN] = {0};
    for (int64_t j = 0; j < dim; j += GROUP)
        for (int k = 0; k < SIXTEEN && j + k * LANES < dim; k++) sum[k] += LEVEL(load_f32)(row + j + k * LANES);
    return LEVEL(sum_sixteen)(sum);
}

INLINE float LEVEL(centered_squares)(const float *row, int64_t dim, float mean) {
    vector_f32 sum[SIXTEEN] = {0};
    vector_i32 lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t j = 0; j < dim; j += GROUP)
        for (int k = 0; k < SIXTEEN && j + k * LANES < dim; k++) {
            const vector_f32 centered = LEVEL(load_f32)(row + j + k * LANES) - mean;
            const vector_i32 is_column = lane < (int32_t)(dim - j - k * LANES);
            sum[k] += (vector_f32)((vector_i32)(centered * centered) & is_column);
        }
    return LEVEL(sum_sixteen)(sum);
}

/* Mean and 1 / sqrt(variance + eps). */
INLINE void LEVEL(moments_of)(const float *row, int64_t dim, float eps, float *moments) {
    moments[0] = LEVEL(row_sum)(row, dim) / (float)dim;
    const float variance = LEVEL(centered_squares)(row, dim, moments[0]) / (float)dim;
    moments[1] = 1.0f / sqrtf(variance + eps);
}
