/* Ones of a register. Included by kernel bodies once per SIMD level, after vector.h. */

/* Counts of a vector's ones, in parts whose sum over each 128 bits is right. */
INLINE vector_u32 LEVEL(count_ones)(vector_u32 bits) {
#ifdef LEVEL_COUNTS_BITS
    return (vector_u32)_mm512_popcnt_epi32((__m512i)bits);
#elif LEVEL_LANES == 16
    const __m512i ones_of = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const __m512i low = _mm512_set1_epi8(15), all = (__m512i)bits;
    const __m512i bytes = _mm512_add_epi8(
        _mm512_shuffle_epi8(ones_of, _mm512_and_si512(all, low)),
        _mm512_shuffle_epi8(ones_of, _mm512_and_si512(_mm512_srli_epi16(all, 4), low)));
    return (vector_u32)_mm512_sad_epu8(bytes, _mm512_setzero_si512());
#elif LEVEL_LANES == 8
    const __m256i ones_of = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const __m256i low = _mm256_set1_epi8(15), all = (__m256i)bits;
    const __m256i bytes = _mm256_add_epi8(
        _mm256_shuffle_epi8(ones_of, _mm256_and_si256(all, low)),
        _mm256_shuffle_epi8(ones_of, _mm256_and_si256(_mm256_srli_epi16(all, 4), low)));
    return (vector_u32)_mm256_sad_epu8(bytes, _mm256_setzero_si256());
#else
    bits -= bits >> 1 & 0x55555555u;
    bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
    bits = (bits + (bits >> 4)) & 0x0f0f0f0fu;
    bits = (bits + (bits >> 8)) & 0x00ff00ffu;
    return (bits + (bits >> 16)) & 0xffffu;
#endif
}
