/* Signed codes of a byte as LANES int32, and back. Included by kernel bodies once per SIMD level, after vector.h. */
typedef int8_t LEVEL(i8s) __attribute__((vector_size(LANES)));

INLINE vector_i32 LEVEL(widen_codes)(const int8_t *lane) {
#if LEVEL_LANES == 16
    return (vector_i32)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)lane));
#elif LEVEL_LANES == 8
    return (vector_i32)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)lane));
#else
    LEVEL(i8s) codes;
    memcpy(&codes, lane, sizeof codes);
    return __builtin_convertvector(codes, vector_i32);
#endif
}

/* Codes j .. j+LANES-1 of a row, fewer at its end. */
INLINE vector_i32 LEVEL(load_codes)(const int8_t *row, int64_t j, int64_t dim) {
    if (j + LANES <= dim) return LEVEL(widen_codes)(row + j);
    int8_t lane[LANES] = {0};
    memcpy(lane, row + j, (size_t)((dim - j) & (LANES - 1)));
    return LEVEL(widen_codes)(lane);
}

/* The low byte of each lane. */
INLINE void LEVEL(store_codes)(uint8_t *row, int64_t j, int64_t dim, vector_i32 codes) {
#if LEVEL_LANES == 16
    const __m128i lane = _mm512_cvtepi32_epi8((__m512i)codes);
#elif LEVEL_LANES == 8
    /* Bytes 0, 4, 8, 12 of each half, and then the halves one after the other. */
    const __m256i low = _mm256_shuffle_epi8((__m256i)codes, _mm256_set1_epi32(0x0c080400));
    const __m128i lane = _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
#else
    const LEVEL(i8s) lane = __builtin_convertvector(codes, LEVEL(i8s));
#endif
    if (j + LANES <= dim)
        memcpy(row + j, &lane, LANES);
    else
        memcpy(row + j, &lane, (size_t)((dim - j) & (LANES - 1)));
}
