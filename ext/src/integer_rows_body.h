/* Kernel body, compiled once a SIMD level by integer_rows.c. A row's values are in `scratch`, padded with zeros to
 * whole groups of sixteen columns, between the formula, its normalization and its codes. */
#include "vector.h"

typedef int8_t LEVEL(i8s) __attribute__((vector_size(LANES)));

/* Codes j .. j+LANES-1 as int32, fewer at the end of a row. */
INLINE vector_i32 LEVEL(load_codes)(const int8_t *row, int64_t j, int64_t dim) {
    int8_t lane[16] = {0};
    memcpy(lane, row + j, (size_t)(j + LANES <= dim ? LANES : dim - j));
#if LEVEL_LANES == 16
    return (vector_i32)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)lane));
#elif LEVEL_LANES == 8
    return (vector_i32)_mm256_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)lane));
#else
    LEVEL(i8s) codes;
    memcpy(&codes, lane, sizeof codes);
    return __builtin_convertvector(codes, vector_i32);
#endif
}

INLINE vector_i32 LEVEL(load_sums)(const int32_t *row, int64_t j, int64_t dim) {
    return (vector_i32)LEVEL(load_columns)(row, j, dim, STORAGE_F32);
}

INLINE vector_f32 LEVEL(source_columns)(const integer_rows *a, int64_t at, int64_t j) {
    if (a->rows) return LEVEL(load_columns)(a->rows + at, j, a->dim, STORAGE_F32);
    const vector_i32 sums = LEVEL(load_sums)(a->sums + at, j, a->dim);
    if (!a->near) return __builtin_convertvector(sums, vector_f32);
    const vector_i32 near = LEVEL(load_codes)(a->near + at, j, a->dim);
    const vector_f32 total = __builtin_convertvector(sums + near, vector_f32);
    return total + __builtin_convertvector(near, vector_f32) * a->epsilon;
}

INLINE void LEVEL(fill_scratch)(const integer_rows *a, int64_t i, float *scratch) {
    const int64_t dim = a->dim, at = i * dim;
    for (int64_t j = 0; j < dim; j += LANES) {
        vector_f32 x = LEVEL(source_columns)(a, at, j);
        if (a->row_scale) x *= a->row_scale[i];
        if (a->column_scale) x *= LEVEL(load_columns)(a->column_scale, j, dim, STORAGE_F32);
        if (a->own) {
            const vector_f32 own = __builtin_convertvector(LEVEL(load_sums)(a->own + at, j, dim), vector_f32);
            x += own * a->own_row_scale[i] * LEVEL(load_columns)(a->own_column_scale, j, dim, STORAGE_F32);
        }
        if (a->bias) x += LEVEL(load_columns)(a->bias, j, dim, STORAGE_F32);
        LEVEL(store)(scratch, j, STORAGE_F32, x);
    }
}

/* Sixteen running sums, whatever the lanes of a register. */
INLINE float LEVEL(row_sum)(const float *scratch, int64_t dim) {
    vector_f32 sum[SIXTEEN] = {0};
    for (int64_t j = 0; j < dim; j += GROUP)
        for (int k = 0; k < SIXTEEN && j + k * LANES < dim; k++) sum[k] += LEVEL(load_f32)(scratch + j + k * LANES);
    return LEVEL(sum_sixteen)(sum);
}

INLINE float LEVEL(centered_squares)(const float *scratch, int64_t dim, float mean) {
    vector_f32 sum[SIXTEEN] = {0};
    vector_i32 lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t j = 0; j < dim; j += GROUP)
        for (int k = 0; k < SIXTEEN && j + k * LANES < dim; k++) {
            const vector_f32 centered = LEVEL(load_f32)(scratch + j + k * LANES) - mean;
            const vector_i32 is_column = lane < (int32_t)(dim - j - k * LANES);
            sum[k] += (vector_f32)((vector_i32)(centered * centered) & is_column);
        }
    return LEVEL(sum_sixteen)(sum);
}

INLINE void LEVEL(normalize)(const integer_rows *a, float *scratch) {
    const int64_t dim = a->dim;
    const float mean = LEVEL(row_sum)(scratch, dim) / (float)dim;
    const float variance = LEVEL(centered_squares)(scratch, dim, mean) / (float)dim;
    const float scale = 1.0f / sqrtf(variance + a->norm_eps);
    for (int64_t j = 0; j < dim; j += LANES) {
        const vector_f32 x = (LEVEL(load_f32)(scratch + j) - mean) * scale;
        const vector_f32 weight = LEVEL(load_columns)(a->norm_weight, j, dim, STORAGE_F32);
        LEVEL(store)(scratch, j, STORAGE_F32, x * weight + LEVEL(load_columns)(a->norm_bias, j, dim, STORAGE_F32));
    }
}

INLINE void LEVEL(store_codes)(uint8_t *row, int64_t j, int64_t dim, vector_i32 codes) {
    uint8_t lane[LANES];
#if LEVEL_LANES == 16
    _mm_storeu_si128((__m128i *)lane, _mm512_cvtepi32_epi8((__m512i)codes));
#else
    for (int i = 0; i < LANES; i++) lane[i] = (uint8_t)codes[i];
#endif
    memcpy(row + j, lane, (size_t)(j + LANES <= dim ? LANES : dim - j));
}

/* Whether some lane is set. */
INLINE int LEVEL(any)(vector_i32 mask) {
    int32_t lane[LANES], any = 0;
    memcpy(lane, &mask, sizeof lane);
    for (int i = 0; i < LANES; i++) any |= lane[i];
    return any != 0;
}

INLINE int LEVEL(encode)(const row_target *target, int64_t i, int64_t dim, const float *scratch) {
    const float step = target->step[i * target->stride], limit = target->limit[i * target->stride];
    vector_i32 is_negative = {0};
    for (int64_t j = 0; j < dim; j += LANES) {
        const vector_f32 x = LEVEL(load_f32)(scratch + j);
        const vector_i32 sign = (vector_i32)x >> 31;
        vector_f32 level = (vector_f32)((vector_i32)x & 0x7fffffff) / step + 0.5f;
        const vector_i32 is_within = level < limit;
        level = (vector_f32)(((vector_i32)level & is_within) | ((vector_i32)((vector_f32){0} + limit) & ~is_within));
        const vector_i32 code = __builtin_convertvector(level, vector_i32);
        is_negative |= x < 0.0f;
        LEVEL(store_codes)(target->codes + i * dim, j, dim, (code ^ sign) - sign);
    }
    return !target->is_signed && LEVEL(any)(is_negative) ? ROW_IS_NEGATIVE : ROW_IS_FINE;
}

/* ReLU, faults, and the values where they are asked for. NaN passes, and is found. */
INLINE int LEVEL(finish)(const integer_rows *a, const row_target *target, int64_t i, float *scratch) {
    vector_i32 is_nan = {0};
    for (int64_t j = 0; j < a->dim; j += LANES) {
        vector_f32 x = LEVEL(load_f32)(scratch + j);
        is_nan |= x != x;
        if (a->rectifies) x = (vector_f32)((vector_i32)x & ~(vector_i32)(x <= 0.0f));
        LEVEL(store)(scratch, j, STORAGE_F32, x);
        if (target->values) LEVEL(store_columns)(target->values + i * a->dim, j, a->dim, STORAGE_F32, x);
    }
    return LEVEL(any)(is_nan) ? ROW_HAS_NAN : ROW_IS_FINE;
}

static int LEVEL(rescale_range)(const integer_rows *a, const row_target *target, int64_t first, int64_t stop,
                                float *scratch) {
    int faults = ROW_IS_FINE;
    for (int64_t i = first; i < stop; i++) {
        LEVEL(fill_scratch)(a, i, scratch);
        if (a->norm_weight) LEVEL(normalize)(a, scratch);
        faults |= LEVEL(finish)(a, target, i, scratch);
        if (target->codes) faults |= LEVEL(encode)(target, i, a->dim, scratch);
    }
    return faults;
}
