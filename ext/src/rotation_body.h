/* A pass of rotation.h over a row of float32, in place, compiled once per SIMD level. Include it after philox_body.h.
 *
 * A pass of up to PASS_VECTORS vectors stays in registers; a wider one is taken in pieces of PASS_VECTORS, and the
 * strides beyond a piece follow, eight vectors together. */

#undef PASS_VECTORS
#define PASS_VECTORS (LANES == 16 ? 16 : 8)
#undef SIGN_LANES
#define SIGN_LANES (GROUPS_TOGETHER * LANES / 2)

/* Blocks number[i] of the node low[i], high[i], two words of 64 bits each. */
INLINE void LEVEL(draw_blocks)(const philox_schedule *schedule, const uint64_t *number, const uint64_t *low,
                               const uint64_t *high, int n, uint64_t *signs) {
    vector_u64 c0[GROUPS_TOGETHER], c1[GROUPS_TOGETHER], c2[GROUPS_TOGETHER], c3[GROUPS_TOGETHER];
#pragma GCC unroll 4
    for (int g = 0; g < n; g++) {
        memcpy(&c0[g], number + g * (LANES / 2), sizeof c0[g]);
        c1[g] = (vector_u64){0} + schedule->stream;
        memcpy(&c2[g], low + g * (LANES / 2), sizeof c2[g]);
        memcpy(&c3[g], high + g * (LANES / 2), sizeof c3[g]);
    }
    LEVEL(philox_rounds)(schedule, n, c0, c1, c2, c3);
    for (int g = 0; g < n; g++) {
        uint64_t words[2][LANES / 2];
        const vector_u64 first = (c0[g] & 0xffffffff) | c1[g] << 32, second = (c2[g] & 0xffffffff) | c3[g] << 32;
        memcpy(words[0], &first, sizeof first);
        memcpy(words[1], &second, sizeof second);
        for (int i = 0; i < LANES / 2; i++) {
            signs[g * LANES + 2 * i] = words[0][i];
            signs[g * LANES + 2 * i + 1] = words[1][i];
        }
    }
}

/* Signs of num_rows rows, plan->num_blocks blocks per row. Up to SIGN_LANES blocks are written behind them. */
static void LEVEL(fill_signs)(const philox_schedule *schedule, const rotation_plan *plan, const int64_t *node_id,
                              int64_t num_rows, uint64_t *signs) {
    uint64_t number[SIGN_LANES], low[SIGN_LANES], high[SIGN_LANES];
    const int64_t num = num_rows * plan->num_blocks;
    int64_t row = 0;
    int block = 0;
    for (int64_t first = 0; first < num; first += SIGN_LANES) {
        for (int i = 0; i < SIGN_LANES; i++) {
            number[i] = plan->block[block];
            low[i] = (uint64_t)node_id[row] & 0xffffffff;
            high[i] = (uint64_t)node_id[row] >> 32;
            if (++block < plan->num_blocks) continue;
            block = 0;
            row += row + 1 < num_rows; /* lanes behind the last row repeat it */
        }
        if (num - first > SIGN_LANES - LANES / 2)
            LEVEL(draw_blocks)(schedule, number, low, high, GROUPS_TOGETHER, signs + 2 * first);
        else
            for (int64_t i = 0; i < num - first; i += LANES / 2)
                LEVEL(draw_blocks)(schedule, number + i, low + i, high + i, 1, signs + 2 * (first + i));
    }
}

/* `scale`, a positive number, with the signs of LANES columns from bit `first` on. */
INLINE vector_f32 LEVEL(signed_scale)(const uint64_t *signs, int64_t first, float scale) {
    uint32_t word;
    memcpy(&word, (const char *)signs + first / 8, sizeof word);
    word >>= first % 8;
#if LEVEL_LANES == 16
    return (vector_f32)_mm512_mask_blend_ps((__mmask16)word, _mm512_set1_ps(scale), _mm512_set1_ps(-scale));
#else
    const vector_u32 lane_bit = ((vector_u32){0} + 1) << LEVEL(lane_numbers)();
    const vector_u32 is_negative = (vector_u32)((((vector_u32){0} + word) & lane_bit) == lane_bit);
    return (vector_f32)((is_negative & 0x80000000) | (vector_u32)LEVEL(repeat)(scale));
#endif
}

/* 1 in the lanes whose bit `stride` is 0, -1 in the others. */
INLINE vector_f32 LEVEL(lane_signs)(int stride) {
    const vector_u32 is_upper = (vector_u32)((LEVEL(lane_numbers)() & (uint32_t)stride) != 0);
    return (vector_f32)((is_upper & 0x80000000) | 0x3f800000);
}

/* Butterflies between lanes, stride a constant: the product with 1 or -1 is exact, so this rounds once. */
INLINE vector_f32 LEVEL(mix_lanes)(vector_f32 v, int stride) {
    vector_f32 other;
#if LEVEL_LANES == 16
    switch (stride) {
    case 1: other = (vector_f32)_mm512_permute_ps((__m512)v, 0xb1); break;
    case 2: other = (vector_f32)_mm512_permute_ps((__m512)v, 0x4e); break;
    case 4: other = (vector_f32)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0xb1); break;
    default: other = (vector_f32)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0x4e);
    }
#elif LEVEL_LANES == 8
    switch (stride) {
    case 1: other = (vector_f32)_mm256_permute_ps((__m256)v, 0xb1); break;
    case 2: other = (vector_f32)_mm256_permute_ps((__m256)v, 0x4e); break;
    default: other = (vector_f32)_mm256_permute2f128_ps((__m256)v, (__m256)v, 1);
    }
#else
    const vector_u32 bits = (vector_u32)v;
    other = (vector_f32)(stride == 1 ? SHUFFLE(vector_u32, bits, bits, 1, 0, 3, 2)
                                     : SHUFFLE(vector_u32, bits, bits, 2, 3, 0, 1));
#endif
    return LEVEL(multiply_add)(v, LEVEL(lane_signs)(stride), other);
}

/* Butterflies of strides 1, 2, 4, ... below num_columns. */
INLINE vector_f32 LEVEL(mix_vector)(vector_f32 v, int64_t num_columns) {
    if (num_columns > 1) v = LEVEL(mix_lanes)(v, 1);
    if (num_columns > 2) v = LEVEL(mix_lanes)(v, 2);
#if LEVEL_LANES >= 8
    if (num_columns > 4) v = LEVEL(mix_lanes)(v, 4);
#endif
#if LEVEL_LANES == 16
    if (num_columns > 8) v = LEVEL(mix_lanes)(v, 8);
#endif
    return v;
}

INLINE void LEVEL(mix_pairs)(vector_f32 *v, int n, int stride) {
#pragma GCC unroll 16
    for (int k = 0; k < n; k++) {
        if (k & stride) continue;
        const vector_f32 a = v[k], b = v[k + stride];
        v[k] = a + b;
        v[k + stride] = a - b;
    }
}

/* Butterflies between n vectors, n a constant of 1, 2, 4, 8, 16. */
INLINE void LEVEL(mix_vectors)(vector_f32 *v, int n) {
    if (n > 1) LEVEL(mix_pairs)(v, n, 1);
    if (n > 2) LEVEL(mix_pairs)(v, n, 2);
    if (n > 4) LEVEL(mix_pairs)(v, n, 4);
    if (n > 8) LEVEL(mix_pairs)(v, n, 8);
}

/* The strides of n neighboring vectors, n a constant; multiplied before them, after them or not. */
INLINE void LEVEL(mix_piece)(float *y, int n, const uint64_t *signs, int64_t sign, float scale, int is_before,
                             int is_after) {
    vector_f32 v[PASS_VECTORS];
#pragma GCC unroll 16
    for (int k = 0; k < n; k++) {
        v[k] = LEVEL(load_f32)(y + k * LANES);
        if (is_before) v[k] *= LEVEL(signed_scale)(signs, sign + k * LANES, scale);
        v[k] = LEVEL(mix_vector)(v[k], LANES);
    }
    LEVEL(mix_vectors)(v, n);
#pragma GCC unroll 16
    for (int k = 0; k < n; k++) {
        if (is_after) v[k] *= LEVEL(signed_scale)(signs, sign + k * LANES, scale);
        LEVEL(store)(y, k * LANES, STORAGE_F32, v[k]);
    }
}

/* The strides stride, 2 * stride, ... of n vectors together, n a constant; multiplied after them or not. */
INLINE void LEVEL(mix_far)(float *y, int64_t width, int64_t stride, int n, const uint64_t *signs, int64_t sign,
                           float scale, int is_after) {
    for (int64_t first = 0; first < width; first += n * stride)
        for (int64_t j = first; j < first + stride; j += LANES) {
            vector_f32 v[8];
#pragma GCC unroll 8
            for (int k = 0; k < n; k++) v[k] = LEVEL(load_f32)(y + j + k * stride);
            LEVEL(mix_vectors)(v, n);
#pragma GCC unroll 8
            for (int k = 0; k < n; k++) {
                if (is_after) v[k] *= LEVEL(signed_scale)(signs, sign + j + k * stride, scale);
                LEVEL(store)(y, j + k * stride, STORAGE_F32, v[k]);
            }
        }
}

/* A pass of more than PASS_VECTORS vectors. */
INLINE void LEVEL(mix_wide)(float *y, int64_t width, const uint64_t *signs, int64_t sign, float scale, int is_back) {
    for (int64_t j = 0; j < width; j += PASS_VECTORS * LANES)
        LEVEL(mix_piece)(y + j, PASS_VECTORS, signs, sign + j, scale, !is_back, 0);
    for (int64_t stride = PASS_VECTORS * LANES; stride < width;) {
        const int64_t left = width / stride;
        if (left >= 8)
            LEVEL(mix_far)(y, width, stride, 8, signs, sign, scale, is_back && left == 8);
        else if (left == 4)
            LEVEL(mix_far)(y, width, stride, 4, signs, sign, scale, is_back);
        else
            LEVEL(mix_far)(y, width, stride, 2, signs, sign, scale, is_back);
        stride *= left >= 8 ? 8 : left;
    }
}

/* A pass narrower than a vector. */
INLINE void LEVEL(mix_narrow)(float *y, int64_t width, const uint64_t *signs, int64_t sign, float scale, int is_back) {
    const vector_f32 factor = LEVEL(signed_scale)(signs, sign, scale);
    vector_f32 v = LEVEL(load_first)(y, 0, width, STORAGE_F32);
    if (!is_back) v *= factor;
    v = LEVEL(mix_vector)(v, width);
    if (is_back) v *= factor;
    LEVEL(store_first)(y, 0, width, STORAGE_F32, v);
}

/* One pass over a row, forward or back; is_back is a constant. */
INLINE void LEVEL(rotate_pass)(float *y, const rotation_plan *plan, int pass, const uint64_t *signs, int is_back) {
    const int64_t sign = plan->first_sign[pass];
    const float scale = plan->scale;
    y += plan->start[pass];
    switch (plan->width < LANES ? 0 : plan->width / LANES) {
    case 0: LEVEL(mix_narrow)(y, plan->width, signs, sign, scale, is_back); break;
    case 1: LEVEL(mix_piece)(y, 1, signs, sign, scale, !is_back, is_back); break;
    case 2: LEVEL(mix_piece)(y, 2, signs, sign, scale, !is_back, is_back); break;
    case 4: LEVEL(mix_piece)(y, 4, signs, sign, scale, !is_back, is_back); break;
    case 8: LEVEL(mix_piece)(y, 8, signs, sign, scale, !is_back, is_back); break;
#if LEVEL_LANES == 16
    case 16: LEVEL(mix_piece)(y, 16, signs, sign, scale, !is_back, is_back); break;
#endif
    default: LEVEL(mix_wide)(y, plan->width, signs, sign, scale, is_back);
    }
}
