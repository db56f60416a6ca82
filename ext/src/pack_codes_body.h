/* Codes of GROUP = 4 * LANES columns to their bytes, compiled once per SIMD level. Include it after philox_body.h. */

typedef uint8_t LEVEL(u8s) __attribute__((vector_size(4 * LANES)));
#undef vector_u8
#define vector_u8 LEVEL(u8s)

/* Integer parts of codes from 0 to 255, in the order of the columns. */
INLINE vector_u8 LEVEL(cut_to_bytes)(const vector_f32 code[4]) {
#if LEVEL_LANES == 16
    /* Packing works within 128-bit lanes; the permutation transposes their words. */
    const __m512i low = _mm512_packs_epi32(_mm512_cvttps_epi32((__m512)code[0]), _mm512_cvttps_epi32((__m512)code[1]));
    const __m512i high = _mm512_packs_epi32(_mm512_cvttps_epi32((__m512)code[2]), _mm512_cvttps_epi32((__m512)code[3]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return (vector_u8)_mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
#elif LEVEL_LANES == 8
    const __m256i low = _mm256_packs_epi32(_mm256_cvttps_epi32((__m256)code[0]), _mm256_cvttps_epi32((__m256)code[1]));
    const __m256i high = _mm256_packs_epi32(_mm256_cvttps_epi32((__m256)code[2]), _mm256_cvttps_epi32((__m256)code[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return (vector_u8)_mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
#elif defined(__SSE2__)
    const __m128i low = _mm_packs_epi32(_mm_cvttps_epi32((__m128)code[0]), _mm_cvttps_epi32((__m128)code[1]));
    const __m128i high = _mm_packs_epi32(_mm_cvttps_epi32((__m128)code[2]), _mm_cvttps_epi32((__m128)code[3]));
    return (vector_u8)_mm_packus_epi16(low, high);
#else
    vector_u8 bytes;
    for (int i = 0; i < GROUP; i++) bytes[i] = (uint8_t)code[i / LANES][i % LANES];
    return bytes;
#endif
}

/* 2 * LANES bytes, of two codes of 4 bits each. */
INLINE void LEVEL(store_pairs)(vector_u8 codes, uint8_t *out) {
#if LEVEL_LANES == 16
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)codes, _mm512_set1_epi16(0x1001));
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi16_epi8(pairs));
#elif LEVEL_LANES == 8
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)codes, _mm256_set1_epi16(0x1001));
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(bytes));
#else
    const vector_u16_pairs pair = (vector_u16_pairs)codes;
    for (int i = 0; i < 2 * LANES; i++) out[i] = (uint8_t)(pair[i] | pair[i] >> 4);
#endif
}

/* LANES bytes, of four codes of 2 bits each. */
INLINE void LEVEL(store_fours)(vector_u8 codes, uint8_t *out) {
#if LEVEL_LANES == 16
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)codes, _mm512_set1_epi16(0x0401));
    _mm_storeu_si128((__m128i *)out, _mm512_cvtepi32_epi8(_mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001))));
#elif LEVEL_LANES == 8
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)codes, _mm256_set1_epi16(0x0401));
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001));
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    _mm_storel_epi64((__m128i *)out, _mm_packus_epi16(halves, halves));
#else
    const vector_u32 four = (vector_u32)codes;
    for (int i = 0; i < LANES; i++) out[i] = (uint8_t)(four[i] | four[i] >> 6 | four[i] >> 12 | four[i] >> 18);
#endif
}

/* Whether each code is 1 or more, as bits: LANES / 2 bytes. */
INLINE void LEVEL(store_bits)(const vector_f32 code[4], uint8_t *out) {
    uint64_t bits = 0;
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
#if LEVEL_LANES == 16
        const uint64_t is_one = _mm512_cmp_ps_mask((__m512)code[v], _mm512_set1_ps(1.0f), _CMP_GE_OQ);
#elif LEVEL_LANES == 8
        const uint64_t is_one = (uint64_t)_mm256_movemask_ps((__m256)(code[v] >= 1.0f));
#elif defined(__SSE2__)
        const uint64_t is_one = (uint64_t)_mm_movemask_ps((__m128)(code[v] >= 1.0f));
#else
        uint64_t is_one = 0;
        for (int i = 0; i < LANES; i++) is_one |= (uint64_t)(code[v][i] >= 1.0f) << i;
#endif
        bits |= is_one << (v * LANES);
    }
    memcpy(out, &bits, LANES / 2);
}

/* Codes with their fractions, cut to integers and to 2^b - 1, b a constant of 1, 2, 4, 8: LANES * b / 2 bytes. */
INLINE void LEVEL(pack_group)(vector_f32 code[4], int b, uint8_t *out) {
    if (b == 1) {
        LEVEL(store_bits)(code, out);
        return;
    }
    const vector_f32 top = LEVEL(broadcast)((float)((1 << b) - 1));
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) code[v] = LEVEL(smaller)(code[v], top);
    const vector_u8 bytes = LEVEL(cut_to_bytes)(code);
    if (b == 8) {
        memcpy(out, &bytes, sizeof bytes);
    } else if (b == 4) {
        LEVEL(store_pairs)(bytes, out);
    } else {
        LEVEL(store_fours)(bytes, out);
    }
}
