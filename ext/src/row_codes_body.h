/* Values of a row as codes, sign(x) min(floor(|x| / step + 0.5), limit), with the same bits at every level. Included by
 * kernel bodies once per SIMD level, after vector.h. NaN becomes the limit. */

#ifndef HPCGNN_ROW_CODES
#define HPCGNN_ROW_CODES
enum { STEP_IS_ONE, STEP_IS_USUAL, STEP_IS_EXTREME };

/* Between these steps neither 1 / step nor the remainder of a value that has a code overflows or loses a bit. */
#define LEAST_USUAL_STEP 0x1p-60f
#define MOST_USUAL_STEP 0x1p60f
#endif

typedef struct {
    vector_f32 step, inverse, limit;
    int kind;
} LEVEL(scale_of_row);
#undef code_scale
#define code_scale LEVEL(scale_of_row)

INLINE code_scale LEVEL(scale_of)(float step, float limit) {
    const int is_usual = step >= LEAST_USUAL_STEP && step <= MOST_USUAL_STEP;
    return (code_scale){LEVEL(repeat)(step), LEVEL(repeat)(1.0f / step), LEVEL(repeat)(limit),
                        step == 1.0f ? STEP_IS_ONE : is_usual ? STEP_IS_USUAL : STEP_IS_EXTREME};
}

/* x / step, rounded as a division rounds, for x >= 0 that are at least 2^-20 steps; smaller ones stay as small.
 *
 * Reference: Markstein, IBM J. Res. Dev. 34 (1990), Theorem 8.4: with the rounded inverse and a quotient that is off by
 * less than its last bit, one more step with an exact remainder gives the rounded quotient. The first step gets there. */
INLINE vector_f32 LEVEL(quotient)(vector_f32 x, const code_scale scale) {
    if (scale.kind == STEP_IS_ONE) return x;
#if LEVEL_LANES >= 8
    if (scale.kind == STEP_IS_USUAL) {
        vector_f32 q = x * scale.inverse;
        q = LEVEL(multiply_add)(LEVEL(multiply_add)(-q, scale.step, x), scale.inverse, q);
        return LEVEL(multiply_add)(LEVEL(multiply_add)(-q, scale.step, x), scale.inverse, q);
    }
#endif
    return x / scale.step;
}

/* The lesser one; b where a is NaN. */
INLINE vector_f32 LEVEL(lesser)(vector_f32 a, vector_f32 b) {
#if LEVEL_LANES == 16
    return (vector_f32)_mm512_min_ps((__m512)a, (__m512)b);
#elif LEVEL_LANES == 8
    return (vector_f32)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vector_f32)_mm_min_ps((__m128)a, (__m128)b);
#else
    const vector_i32 is_less = a < b;
    return (vector_f32)(((vector_i32)a & is_less) | ((vector_i32)b & ~is_less));
#endif
}

/* A level's numbers are cut to whole ones toward zero. */
INLINE vector_i32 LEVEL(cut)(vector_f32 x) {
#if LEVEL_LANES == 16
    return (vector_i32)_mm512_cvttps_epi32((__m512)x);
#elif LEVEL_LANES == 8
    return (vector_i32)_mm256_cvttps_epi32((__m256)x);
#else
    return __builtin_convertvector(x, vector_i32);
#endif
}

INLINE vector_i32 LEVEL(codes_of)(vector_f32 x, const code_scale scale) {
    const vector_i32 sign = (vector_i32)x & INT32_MIN, magnitude = (vector_i32)x & INT32_MAX;
    const vector_f32 level = LEVEL(lesser)(LEVEL(quotient)((vector_f32)magnitude, scale) + 0.5f, scale.limit);
    return LEVEL(cut)((vector_f32)((vector_i32)level | sign));
}

/* The same for x >= 0. */
INLINE vector_i32 LEVEL(codes_of_positive)(vector_f32 x, const code_scale scale) {
    return LEVEL(cut)(LEVEL(lesser)(LEVEL(quotient)(x, scale) + 0.5f, scale.limit));
}
