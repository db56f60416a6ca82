/* Products of words of WORD codes and weights: 4 bytes where the level sums products of bytes, else 2 int16.
 * Included by kernel bodies once per SIMD level, after vector.h. */
#undef WORD
#ifdef LEVEL_SUMS_BYTES
#define WORD 4
#else
#define WORD 2
#endif

/* sum + the products of a word of codes with the weights of LANES outputs. */
INLINE vector_i32 LEVEL(add_dots)(vector_i32 sum, vector_i32 codes, vector_i32 weights) {
#ifdef LEVEL_SUMS_BYTES
    return (vector_i32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)weights);
#elif LEVEL_LANES == 16
    return sum + (vector_i32)_mm512_madd_epi16((__m512i)codes, (__m512i)weights);
#elif LEVEL_LANES == 8
    return sum + (vector_i32)_mm256_madd_epi16((__m256i)codes, (__m256i)weights);
#elif defined(__SSE2__)
    return sum + (vector_i32)_mm_madd_epi16((__m128i)codes, (__m128i)weights);
#else
    return sum + (codes << 16 >> 16) * (weights << 16 >> 16) + (codes >> 16) * (weights >> 16);
#endif
}
