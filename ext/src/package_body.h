/* Rows of codes to and from bitmaps and values, once a SIMD level. All levels give the same bytes. */

/* Counts the non-zero codes of a row; returns whether all fit `width` bits. */
static int64_t LEVEL(count_row)(const uint8_t *codes, int64_t dim, int width, int is_signed, int32_t *count) {
    int32_t zeros = 0;
    uint8_t seen = 0;
    for (int64_t first = 0; first < dim; first += 128) { /* so many bytes of 0 and 1 fill no byte */
        uint8_t block_zeros = 0;
        const int64_t last = least(first + 128, dim);
        for (int64_t j = first; j < last; j++) {
            const uint8_t negative = (uint8_t)(is_signed ? -(codes[j] >> 7) : 0);
            seen |= (uint8_t)((codes[j] ^ negative) - negative);
            block_zeros += codes[j] == 0;
        }
        zeros += block_zeros;
    }
    *count = (int32_t)dim - zeros;
    return !(seen >> (width - (is_signed ? 1 : 0)));
}

/* The non-zero ones of up to BLOCK_COLUMNS codes, in order, and the bitmap of all of them; returns their number.
 * FIELD_SLACK bytes after them may be written. */
static int64_t LEVEL(gather_block)(const uint8_t *codes, int64_t num_columns, uint8_t *fields, uint8_t *bitmap) {
    int64_t count = 0, j = 0;
#if LEVEL_LANES == 16
    for (; j + 16 <= num_columns; j += 16) {
        const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + j)));
        const __mmask16 is_value = _mm512_test_epi32_mask(code, code);
        const __m512i values = _mm512_maskz_compress_epi32(is_value, code);
        _mm_storeu_si128((__m128i *)(fields + count), _mm512_cvtepi32_epi8(values));
        memcpy(bitmap + j / 8, &is_value, 2);
        count += __builtin_popcount(is_value);
    }
#endif
    for (; j < num_columns; j += 8) {
        unsigned mask = 0;
        const int64_t width = least(8, num_columns - j);
        for (int64_t i = 0; i < width; i++) {
            const uint8_t code = codes[j + i];
            fields[count] = code;
            count += code != 0;
            mask |= (unsigned)(code != 0) << i;
        }
        bitmap[j / 8] = (uint8_t)mask;
    }
    return count;
}

/* Eight columns: fields[k] to the k-th set bit of mask, zero elsewhere. */
static inline uint64_t LEVEL(spread_eight)(uint64_t mask, const uint8_t *fields) {
    const uint64_t bits = mask * EVERY_BYTE & 0x8040201008040201u;
    const uint64_t ones = ((bits + 0x7f * EVERY_BYTE) >> 7) & EVERY_BYTE;
#if LEVEL_LANES >= 8
    /* Byte i of the shuffle: how many set bits lie below i, or 128, which gives zero. */
    const uint64_t from = (ones * EVERY_BYTE - ones) | (ones ^ EVERY_BYTE) << 7;
    return (uint64_t)_mm_cvtsi128_si64(
        _mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)fields), _mm_cvtsi64_si128((long long)from)));
#else
    uint64_t out = 0;
    for (int i = 0; i < 8; i++) {
        const uint64_t one = ones >> (8 * i) & 1;
        out |= ((uint64_t)*fields & (0 - one)) << (8 * i);
        fields += one;
    }
    return out;
#endif
}

/* The columns of up to BLOCK_COLUMNS bits of a bitmap, whose bits past num_columns are zero, from their values. */
static inline void LEVEL(spread_block)(const uint8_t *bitmap, int64_t num_columns, const uint8_t *fields,
                                       uint8_t *codes) {
    int64_t j = 0;
#if LEVEL_LANES == 16
    for (; j + 16 <= num_columns; j += 16) {
        __mmask16 mask;
        memcpy(&mask, bitmap + j / 8, 2);
        const __m512i values = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)fields));
        _mm_storeu_si128((__m128i *)(codes + j), _mm512_cvtepi32_epi8(_mm512_maskz_expand_epi32(mask, values)));
        fields += __builtin_popcount(mask);
    }
#endif
    for (; j < num_columns; j += 8) {
        const uint64_t mask = bitmap[j / 8], eight = mask ? LEVEL(spread_eight)(mask, fields) : 0;
        memcpy(codes + j, &eight, (size_t)least(8, num_columns - j));
        fields += __builtin_popcount((unsigned)mask);
    }
}

static inline void LEVEL(scale_block)(const uint8_t *codes, int64_t num_columns, int is_signed, float scale, float *row) {
    if (is_signed)
        for (int64_t j = 0; j < num_columns; j++) row[j] = (float)(int8_t)codes[j] * scale;
    else
        for (int64_t j = 0; j < num_columns; j++) row[j] = (float)codes[j] * scale;
}

/* Reads one row into codes, or into `row`; either may be null. *width is 0 where the row has no value. */
static int LEVEL(decode_row)(package_reader *reader, int64_t index, uint8_t *codes, float *row, float scale,
                             uint8_t *width) {
    const packages *p = reader->p;
    const uint8_t *bitmap = p->bitmap + index * ((p->dim + 7) / 8);
    uint8_t fields[BLOCK_COLUMNS + FIELD_SLACK], block_codes[BLOCK_COLUMNS];
    int row_width = 0;
    if (p->dim % 8 && bitmap[p->dim / 8] >> (p->dim % 8)) return stop_at(reader, FAULT_BITMAP);
    for (int64_t j = 0; j < p->dim; j += BLOCK_COLUMNS) {
        const int64_t num_columns = least(BLOCK_COLUMNS, p->dim - j);
        const int64_t count = count_ones(bitmap + j / 8, (num_columns + 7) / 8);
        if (!take_values(reader, count, &row_width, fields)) return 0;
        if (!codes && !row) continue;
        if (p->format.is_signed && count) restore_signs(fields, count, row_width);
        uint8_t *out = codes ? codes + j : block_codes;
        LEVEL(spread_block)(bitmap + j / 8, num_columns, fields, out);
        if (row) LEVEL(scale_block)(out, num_columns, p->format.is_signed, scale, row + j);
    }
    *width = (uint8_t)row_width;
    return 1;
}
