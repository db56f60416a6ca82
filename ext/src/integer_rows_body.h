/* Kernel body, compiled once per SIMD level by integer_rows.c. `a` is read from a local copy, which no store can
 * change; parts of the formula that are left out cost nothing. */
#include "vector.h"

#include "code_lanes_body.h"
#include "row_codes_body.h"
#include "row_moments_body.h"

INLINE vector_i32 LEVEL(load_sums)(const int32_t *row, int64_t j, int64_t dim) {
    return (vector_i32)LEVEL(load_columns)(row, j, dim, STORAGE_F32);
}

INLINE vector_f32 LEVEL(source_columns)(const integer_rows a, int64_t at, int64_t j) {
    if (a.rows) return LEVEL(load_columns)(a.rows + at, j, a.dim, STORAGE_F32);
    const vector_i32 sums = LEVEL(load_sums)(a.sums + at, j, a.dim);
    if (!a.near) return __builtin_convertvector(sums, vector_f32);
    const vector_i32 near = LEVEL(load_codes)(a.near + at, j, a.dim);
    const vector_f32 total = __builtin_convertvector(sums + near, vector_f32);
    return total + __builtin_convertvector(near, vector_f32) * a.epsilon;
}

/* x of the formula before LayerNorm, columns j .. j+LANES-1; columns from dim on are zero. */
INLINE vector_f32 LEVEL(columns_of)(const integer_rows a, int64_t i, int64_t j) {
    vector_f32 x = LEVEL(source_columns)(a, i * a.dim, j);
    if (a.row_scale) x *= a.row_scale[i];
    if (a.column_scale) x *= LEVEL(load_columns)(a.column_scale, j, a.dim, STORAGE_F32);
    if (a.own) {
        const vector_f32 own = __builtin_convertvector(LEVEL(load_sums)(a.own + i * a.dim, j, a.dim), vector_f32);
        x += own * a.own_row_scale[i] * LEVEL(load_columns)(a.own_column_scale, j, a.dim, STORAGE_F32);
    }
    if (a.bias) x += LEVEL(load_columns)(a.bias, j, a.dim, STORAGE_F32);
    return x;
}

/* The moments of a row, whose values stay in scratch. */
INLINE void LEVEL(row_moments)(const integer_rows a, int64_t i, float *scratch, float *moments) {
    for (int64_t j = 0; j < a.dim; j += LANES) LEVEL(store)(scratch, j, STORAGE_F32, LEVEL(columns_of)(a, i, j));
    LEVEL(moments_of)(scratch, a.dim, a.norm_eps, moments);
}

INLINE vector_f32 LEVEL(normalized_columns)(const integer_rows a, const float *scratch, const float *moments,
                                            int64_t j) {
    const vector_f32 x = (LEVEL(load_f32)(scratch + j) - moments[0]) * moments[1];
    const vector_f32 weight = LEVEL(load_columns)(a.norm_weight, j, a.dim, STORAGE_F32);
    return x * weight + LEVEL(load_columns)(a.norm_bias, j, a.dim, STORAGE_F32);
}

/* Whether some lane is set. */
INLINE int LEVEL(any)(vector_i32 mask) {
    int32_t lane[LANES], any = 0;
    memcpy(lane, &mask, sizeof lane);
    for (int i = 0; i < LANES; i++) any |= lane[i];
    return any != 0;
}

/* One row; NaN passes the ReLU and is detected. A lane that is set in is_nan or is_negative marks a fault. */
INLINE void LEVEL(rescale_row)(const integer_rows a, const row_target target, int64_t i, float *scratch,
                               vector_i32 *is_nan, vector_i32 *is_negative) {
    float moments[2] = {0.0f, 1.0f};
    if (a.norm_weight) LEVEL(row_moments)(a, i, scratch, moments);
    const int64_t at = i * target.stride;
    const code_scale scale = target.codes ? LEVEL(scale_of)(target.step[at], target.limit[at]) : LEVEL(scale_of)(1, 0);
    for (int64_t j = 0; j < a.dim; j += LANES) {
        vector_f32 x = a.norm_weight ? LEVEL(normalized_columns)(a, scratch, moments, j) : LEVEL(columns_of)(a, i, j);
        *is_nan |= x != x;
        if (a.rectifies) x = (vector_f32)((vector_i32)x & ~(vector_i32)(x <= 0.0f));
        *is_negative |= x < 0.0f;
        if (target.values) LEVEL(store_columns)(target.values + i * a.dim, j, a.dim, STORAGE_F32, x);
        if (target.codes) LEVEL(store_codes)(target.codes + i * a.dim, j, a.dim, LEVEL(codes_of)(x, scale));
    }
}

static int LEVEL(rescale_range)(const integer_rows *source, const row_target *where, int64_t first, int64_t stop,
                                float *scratch) {
    const integer_rows a = *source;
    const row_target target = *where;
    vector_i32 is_nan = {0}, is_negative = {0};
    for (int64_t i = first; i < stop; i++) LEVEL(rescale_row)(a, target, i, scratch, &is_nan, &is_negative);
    return (LEVEL(any)(is_nan) ? ROW_HAS_NAN : ROW_IS_FINE) |
           (target.codes && !target.is_signed && LEVEL(any)(is_negative) ? ROW_IS_NEGATIVE : ROW_IS_FINE);
}
