/* Kernel body, compiled once per SIMD level by fake_quantization.c. Lanes past the last column hold zeros, which have
 * the code 0 and add nothing. */
#include "vector.h"

INLINE vector_i32 LEVEL(sign_bits)(vector_f32 x) { return (vector_i32)x & INT32_MIN; }

INLINE vector_f32 LEVEL(magnitude)(vector_f32 x) { return (vector_f32)((vector_i32)x & INT32_MAX); }

INLINE vector_f32 LEVEL(masked)(vector_f32 x, vector_i32 mask) { return (vector_f32)((vector_i32)x & mask); }

/* The code with the sign of x, as a float; NaN stays. limit is whole, so cutting before rounding down changes nothing. */
INLINE vector_f32 LEVEL(signed_code)(vector_f32 x, vector_f32 ratio, vector_f32 limit) {
    const vector_f32 level = LEVEL(magnitude)(ratio) + 0.5f;
    const vector_i32 is_past = limit < level, is_nan = x != x;
    const vector_f32 least = (vector_f32)(((vector_i32)limit & is_past) | ((vector_i32)level & ~is_past));
    const vector_f32 whole = __builtin_convertvector(__builtin_convertvector(LEVEL(masked)(least, ~is_nan), vector_i32),
                                                     vector_f32);
    return (vector_f32)((vector_i32)whole | LEVEL(sign_bits)(x) | ((vector_i32)x & is_nan));
}

/* -1, 0 or 1. */
INLINE vector_f32 LEVEL(sign)(vector_f32 x) {
    const vector_f32 one = (vector_f32){0} + 1.0f;
    return (vector_f32)(((vector_i32)one | LEVEL(sign_bits)(x)) & (x != 0.0f));
}

INLINE vector_f32 LEVEL(steps)(const quantized_values a, int64_t i, int64_t j) {
    return a.is_by_column ? LEVEL(load_columns)(a.step, j, a.dim, STORAGE_F32) : (vector_f32){0} + a.step[i];
}

static void LEVEL(quantize_range)(const quantized_values *source, int64_t first, int64_t stop, float *out) {
    const quantized_values a = *source;
    for (int64_t i = first; i < stop; i++) {
        const vector_f32 limit = (vector_f32){0} + a.limit[i * a.limit_stride];
        for (int64_t j = 0; j < a.dim; j += LANES) {
            const vector_f32 x = LEVEL(load_columns)(a.values + i * a.dim, j, a.dim, STORAGE_F32);
            const vector_f32 step = LEVEL(steps)(a, i, j);
            const vector_f32 rounded = LEVEL(signed_code)(x, x / step, limit) * step;
            LEVEL(store_columns)(out + i * a.dim, j, a.dim, STORAGE_F32, rounded);
        }
    }
}

INLINE float LEVEL(sum_lanes)(vector_f32 v) {
    float lane[LANES], sum = 0.0f;
    memcpy(lane, &v, sizeof lane);
    for (int i = 0; i < LANES; i++) sum += lane[i];
    return sum;
}

/* Columns j .. j+LANES-1 of row i; adds to of_step and to clipped. */
INLINE void LEVEL(backward_columns)(const quantized_values a, const quantized_gradients g, int64_t i, int64_t j,
                                    vector_f32 limit, vector_f32 *of_step, vector_f32 *clipped) {
    const vector_f32 x = LEVEL(load_columns)(a.values + i * a.dim, j, a.dim, STORAGE_F32);
    const vector_f32 step = LEVEL(steps)(a, i, j), ratio = x / step;
    const vector_i32 is_clipped = LEVEL(magnitude)(ratio) > limit;
    const vector_f32 code = LEVEL(signed_code)(x, ratio, limit);
    vector_f32 gradient = LEVEL(load_columns)(g.gradient + i * a.dim, j, a.dim, STORAGE_F32);
    if (g.of_values)
        LEVEL(store_columns)(g.of_values + i * a.dim, j, a.dim, STORAGE_F32, LEVEL(masked)(gradient, ~is_clipped));
    if (g.is_local) gradient = LEVEL(sign)(code * step - x) * g.local_weight;
    *of_step += gradient * (code - LEVEL(masked)(ratio, ~is_clipped));
    *clipped += LEVEL(masked)(gradient * LEVEL(sign)(x), is_clipped);
}

INLINE void LEVEL(backward_by_row)(const quantized_values a, const quantized_gradients g, int64_t first,
                                   int64_t stop) {
    for (int64_t i = first; i < stop; i++) {
        const vector_f32 limit = (vector_f32){0} + a.limit[i * a.limit_stride];
        vector_f32 of_step = {0}, clipped = {0};
        for (int64_t j = 0; j < a.dim; j += LANES) LEVEL(backward_columns)(a, g, i, j, limit, &of_step, &clipped);
        g.of_step[i] = LEVEL(sum_lanes)(of_step);
        if (g.clipped) g.clipped[i] = LEVEL(sum_lanes)(clipped);
    }
}

INLINE void LEVEL(backward_by_column)(const quantized_values a, const quantized_gradients g, int64_t first,
                                      int64_t stop, float *partial) {
    memset(partial, 0, (size_t)a.dim * sizeof(float));
    for (int64_t i = first; i < stop; i++) {
        const vector_f32 limit = (vector_f32){0} + a.limit[i * a.limit_stride];
        for (int64_t j = 0; j < a.dim; j += LANES) {
            vector_f32 of_step = LEVEL(load_columns)(partial, j, a.dim, STORAGE_F32), clipped = {0};
            LEVEL(backward_columns)(a, g, i, j, limit, &of_step, &clipped);
            LEVEL(store_columns)(partial, j, a.dim, STORAGE_F32, of_step);
        }
    }
}

static void LEVEL(backward_range)(const quantized_values *values, const quantized_gradients *gradients, int64_t first,
                                  int64_t stop, float *partial) {
    if (values->is_by_column)
        LEVEL(backward_by_column)(*values, *gradients, first, stop, partial);
    else
        LEVEL(backward_by_row)(*values, *gradients, first, stop);
}
