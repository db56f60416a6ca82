/* Rows of codes to and from bitmaps and values, once per SIMD level. All levels give the same bytes. */
#include "package_positions_body.h"

/* Counts the non-zero codes of a row; returns whether all fit `width` bits. */
static int64_t LEVEL(count_row)(const uint8_t *codes, int64_t dim, int width, int is_signed, int32_t *count) {
    int32_t zeros = 0;
    uint8_t seen = 0;
    for (int64_t first = 0; first < dim; first += 128) { /* counts up to 128 fit a byte */
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

/* Writes the non-zero ones of up to BLOCK_COLUMNS codes to fields, in order, and their bitmap; returns their number.
 * FIELD_SLACK bytes after the fields may be written. */
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

/* Spreads fields to the columns set in up to BLOCK_COLUMNS bits of a bitmap; its bits past num_columns are zero. */
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

/* Writes columns from `first` on: the fields at the listed columns, zero elsewhere. */
static inline void LEVEL(scatter_block)(const int32_t *column, int64_t count, int64_t first, int64_t num_columns,
                                        const uint8_t *fields, uint8_t *codes) {
    memset(codes, 0, (size_t)num_columns);
    for (int64_t i = 0; i < count; i++) codes[column[i] - first] = fields[i];
}

/* Writes columns from `first` on: zero at the listed columns, the fields elsewhere. RUN_SLACK bytes after the columns
 * may be written, and as many after the fields read. */
static inline void LEVEL(fill_block)(const int32_t *column, int64_t count, int64_t first, int64_t num_columns,
                                     const uint8_t *fields, uint8_t *codes) {
    int64_t next = 0;
    for (int64_t i = 0; i <= count; i++) {
        const int64_t end = i < count ? column[i] - first : num_columns;
        const int64_t rest = end - next - RUN_SLACK;
        memcpy(codes + next, fields + next - i, RUN_SLACK);
        if (rest > 0) memcpy(codes + next + RUN_SLACK, fields + next - i + RUN_SLACK, (size_t)rest);
        codes[end] = 0;
        next = end + 1;
    }
}

/* Reads one row into codes, or into `row`; either may be null. *width is 0 where the row has no value. */
static int LEVEL(decode_row)(row_reader *reader, uint8_t *codes, float *row, float scale, uint8_t *width) {
    package_reader *values = &reader->values;
    const packages *p = values->p;
    row_positions *positions = &reader->positions;
    uint8_t fields[BLOCK_COLUMNS + FIELD_SLACK], block[BLOCK_COLUMNS + RUN_SLACK];
    int row_width = 0;
    int64_t passed = 0;
    if (!LEVEL(read_positions)(values, &reader->place, positions)) return 0;
    for (int64_t j = 0; j < p->dim; j += BLOCK_COLUMNS) {
        const int64_t num_columns = least(BLOCK_COLUMNS, p->dim - j);
        const int is_map = positions->kind == MAPPED;
        const int64_t listed = is_map ? 0 : listed_before(positions, passed, j + num_columns) - passed;
        const int64_t count = is_map ? count_ones(positions->bitmap + j / 8, (num_columns + 7) / 8)
                              : positions->kind == LISTED_VALUES ? listed : num_columns - listed;
        const int32_t *column = positions->column + passed;
        passed += listed;
        if (!take_values(values, count, &row_width, fields)) return 0;
        if (!codes && !row) continue;
        if (p->format.is_signed && count) restore_signs(fields, count, row_width);
        uint8_t *out = codes ? codes + j : block;
        if (is_map)
            LEVEL(spread_block)(positions->bitmap + j / 8, num_columns, fields, out);
        else if (positions->kind == LISTED_VALUES)
            LEVEL(scatter_block)(column, listed, j, num_columns, fields, out);
        else {
            LEVEL(fill_block)(column, listed, j, num_columns, fields, block);
            if (codes) memcpy(codes + j, block, (size_t)num_columns);
        }
        if (row) LEVEL(scale_block)(out, num_columns, p->format.is_signed, scale, row + j);
    }
    *width = (uint8_t)row_width;
    return 1;
}

/* Reads where the values of one row stand into a bitmap of (dim + 7) / 8 bytes, which may be null. */
static int LEVEL(read_bitmap)(row_reader *reader, uint8_t *bitmap) {
    const row_positions *positions = &reader->positions;
    const int64_t dim = reader->values.p->dim;
    if (!LEVEL(read_positions)(&reader->values, &reader->place, &reader->positions)) return 0;
    if (!bitmap || !dim) return 1;
    if (positions->kind == MAPPED) {
        memcpy(bitmap, positions->bitmap, (size_t)((dim + 7) / 8));
        return 1;
    }
    memset(bitmap, positions->kind == LISTED_ZEROS ? 0xff : 0, (size_t)((dim + 7) / 8));
    if (dim % 8) bitmap[dim / 8] &= (uint8_t)((1 << dim % 8) - 1);
    for (int64_t i = 0; i < positions->num_listed; i++)
        bitmap[positions->column[i] / 8] ^= (uint8_t)(1 << positions->column[i] % 8);
    return 1;
}

/* Counts one row's columns of the rarer kind, with or without a value; returns the bits of their gaps. */
static int64_t LEVEL(plan_row)(const uint8_t *bitmap, int64_t dim, int32_t *count) {
    int64_t num_values = 0, gap_bits = 0, next = 0;
    for (int64_t j = 0; j < dim; j += 64) num_values += __builtin_popcountll(word_of(bitmap, dim, j));
    const uint64_t flip = 2 * num_values > dim ? ~UINT64_C(0) : 0;
    *count = (int32_t)(flip ? dim - num_values : num_values);
    const int shift = list_shift(dim, *count);
    /* A list would not pay even if no gap had high bits. */
    if (!list_pays(dim, *count * (int64_t)(shift + 1) + LIST_HEADER_BITS)) return dim;
    for (int64_t j = 0; j < dim; j += 64)
        for (uint64_t ones = listed_of(bitmap, dim, j, flip); ones; ones &= ones - 1) {
            const int64_t column = j + __builtin_ctzll(ones);
            gap_bits += (column - next) >> shift;
            next = column + 1;
        }
    return gap_bits + *count * (int64_t)(shift + 1);
}
