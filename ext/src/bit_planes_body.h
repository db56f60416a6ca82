/* Codes of a byte each to words of one plane. Included by kernel bodies once per SIMD level, after vector.h. */

/* Bit p of codes[0 .. 31], the first lowest. */
INLINE uint32_t LEVEL(plane_word)(const uint8_t *codes, int p) {
#if LEVEL_LANES >= 8
    __m256i bytes;
    memcpy(&bytes, codes, sizeof bytes);
    return (uint32_t)_mm256_movemask_epi8(_mm256_sll_epi16(bytes, _mm_cvtsi32_si128(7 - p)));
#else
    /* The product moves bit 0 of byte k to bit 56 + k, without carries. */
    uint32_t word = 0;
    for (int part = 0; part < 4; part++) {
        uint64_t eight;
        memcpy(&eight, codes + 8 * part, sizeof eight);
        eight = eight >> p & 0x0101010101010101u;
        word |= (uint32_t)(eight * 0x0102040810204080u >> 56) << 8 * part;
    }
    return word;
#endif
}

/* floor((value - low) / step + offset), clamped to the codes of that width. */
INLINE uint8_t LEVEL(code_of)(float value, float low, float step, float offset, float largest) {
    float code = (value - low) / step + offset;
    code = code > 0.0f ? code : 0.0f;
    code = code < largest ? code : largest;
    return (uint8_t)(int32_t)code;
}
