/* Rows of 8-bit codes as vectors of 16-bit sums, 2 * LANES columns each. Include it per SIMD level, after vector.h. */

#undef COLUMNS
#define COLUMNS (2 * LANES)
typedef uint16_t LEVEL(code_sums) __attribute__((vector_size(2 * COLUMNS)));
#undef vector_sums
#define vector_sums LEVEL(code_sums)

/* COLUMNS codes, widened. */
INLINE vector_sums LEVEL(load_byte_codes)(const uint8_t *codes, int is_signed) {
#if LEVEL_LANES == 16
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
    return (vector_sums)(is_signed ? _mm512_cvtepi8_epi16(bytes) : _mm512_cvtepu8_epi16(bytes));
#elif LEVEL_LANES == 8
    const __m128i bytes = _mm_loadu_si128((const __m128i *)codes);
    return (vector_sums)(is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes));
#else
    typedef int8_t signed_codes __attribute__((vector_size(8)));
    typedef uint8_t unsigned_codes __attribute__((vector_size(8)));
    typedef int16_t signed_sums __attribute__((vector_size(16)));
    signed_codes low;
    memcpy(&low, codes, sizeof low);
    return is_signed ? (vector_sums)__builtin_convertvector(low, signed_sums)
                     : __builtin_convertvector((unsigned_codes)low, vector_sums);
#endif
}

/* LANES sums as 32 bits: the first or the second half of a vector. */
INLINE vector_i32 LEVEL(widen_sums)(vector_sums sum, int half, int is_signed) {
    vector_u16 part;
    memcpy(&part, (const char *)&sum + half * sizeof part, sizeof part);
    const vector_u32 wide = LEVEL(widen)(part);
    return is_signed ? (vector_i32)(wide << 16) >> 16 : (vector_i32)wide;
}
