#include "vector.h"

/* Dense: a task's codes become words, of 4 bytes where the level sums products of bytes, else of 2 int16, and each word
 * meets a register of weights, LANES outputs. Sums of MANY_ROWS rows and one panel, or FEW_ROWS and WIDE_PANELS panels,
 * stay in registers. */
#undef WIDE_PANELS
#undef MANY_ROWS
#undef FEW_ROWS
#undef WORD
#if LEVEL_LANES == 16
#define WIDE_PANELS 4
#define MANY_ROWS 12
#define FEW_ROWS 6
#else
#define WIDE_PANELS 2
#define MANY_ROWS 8
#define FEW_ROWS 4
#endif
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

/* One word of WORD weights of an output from column k on, zero past the last one. */
INLINE uint32_t LEVEL(weight_word)(const int8_t *weights, int64_t count) {
    int8_t bytes[WORD] = {0};
    memcpy(bytes, weights, (size_t)count);
#ifdef LEVEL_SUMS_BYTES
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
#else
    return (uint16_t)bytes[0] | (uint32_t)bytes[1] << 16;
#endif
}

static void LEVEL(fill_panel)(const weight_rows *weight, int64_t p, int is_signed, const weight_panels *panels) {
    uint32_t *words = panels->words + p * panels->num_words * LANES;
    for (int64_t lane = 0; lane < LANES; lane++) {
        const int64_t output = p * LANES + lane, dim = output < weight->num_outputs ? weight->dim : 0;
        const int8_t *weights = dim ? weight->codes + output * dim : NULL;
        int32_t sum = 0;
        for (int64_t k = 0; k < dim; k++) sum += weights[k];
        for (int64_t w = 0; w < dim / WORD; w++) words[w * LANES + lane] = LEVEL(weight_word)(weights + w * WORD, WORD);
        for (int64_t w = dim / WORD; w < panels->num_words; w++)
            words[w * LANES + lane] = w * WORD < dim ? LEVEL(weight_word)(weights + w * WORD, dim - w * WORD) : 0;
        /* Bytes are summed unsigned: a signed code comes with 128 added. */
        panels->base[output] = WORD == 4 && is_signed ? -128 * sum : 0;
    }
}

/* Codes k .. k + count - 1 of a row as words, the last one filled with zeros. */
INLINE void LEVEL(fill_words)(const uint8_t *codes, int64_t count, int is_signed, uint32_t *words) {
    if (count % WORD) words[count / WORD] = 0;
#ifdef LEVEL_SUMS_BYTES
    uint8_t *bytes = (uint8_t *)words;
    const uint8_t offset = is_signed ? 128 : 0;
    for (int64_t k = 0; k < count; k++) bytes[k] = codes[k] ^ offset;
#else
    int16_t *halves = (int16_t *)words;
    if (is_signed)
        for (int64_t k = 0; k < count; k++) halves[k] = (int8_t)codes[k];
    else
        for (int64_t k = 0; k < count; k++) halves[k] = codes[k];
#endif
}

/* num_rows rows of words times num_panels panels, added to `out`, or to the base where is_first. */
INLINE void LEVEL(multiply_block)(const uint32_t *rows, int64_t num_words, const weight_panels *panels, int64_t p,
                                  int64_t first_word, int64_t rows_left, int32_t *out, const int num_rows,
                                  const int num_panels) {
    const int64_t panel_words = panels->num_words * LANES;
    const uint32_t *weights = panels->words + p * panel_words + first_word * LANES;
    const int64_t outputs_left = panels->num_outputs - p * LANES;
    vector_i32 sum[MANY_ROWS][WIDE_PANELS];
#pragma GCC unroll 16
    for (int r = 0; r < num_rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < num_panels; v++) sum[r][v] = (vector_i32){0};
    for (int64_t w = 0; w < num_words; w++) {
        vector_i32 columns[WIDE_PANELS];
#pragma GCC unroll 4
        for (int v = 0; v < num_panels; v++)
            memcpy(&columns[v], weights + v * panel_words + w * LANES, sizeof columns[v]);
#pragma GCC unroll 16
        for (int r = 0; r < num_rows; r++) {
            const vector_i32 codes = (vector_i32){0} + (int32_t)rows[r * BLOCK_WORDS + w];
#pragma GCC unroll 4
            for (int v = 0; v < num_panels; v++) sum[r][v] = LEVEL(add_dots)(sum[r][v], codes, columns[v]);
        }
    }
    for (int r = 0; r < num_rows && r < rows_left; r++)
        for (int v = 0; v < num_panels; v++) {
            int32_t *at = out + r * panels->num_outputs + (p + v) * LANES;
            const int32_t *before = first_word ? at : panels->base + (p + v) * LANES;
            const int64_t count = least(LANES, outputs_left - v * LANES);
            for (int64_t lane = 0; lane < count; lane++) at[lane] = before[lane] + sum[r][v][lane];
        }
}

/* TASK_ROWS rows from first_row on. */
static void LEVEL(multiply_task)(const code_rows *rows, const weight_panels *panels, int64_t first_row,
                                 uint32_t *words, int32_t *out) {
    const int64_t num_rows = least(TASK_ROWS, rows->num_rows - first_row);
    out += first_row * panels->num_outputs;
    for (int64_t first = 0; first == 0 || first < panels->num_words; first += BLOCK_WORDS) {
        const int64_t num_words = least(BLOCK_WORDS, panels->num_words - first);
        for (int64_t r = 0; r < num_rows; r++)
            LEVEL(fill_words)(rows->codes + (first_row + r) * rows->dim + first * WORD,
                              least(num_words * WORD, rows->dim - first * WORD), rows->is_signed,
                              words + r * BLOCK_WORDS);
        int64_t p = 0;
        for (; p + WIDE_PANELS <= panels->num_panels; p += WIDE_PANELS)
            for (int64_t r = 0; r < num_rows; r += FEW_ROWS)
                LEVEL(multiply_block)(words + r * BLOCK_WORDS, num_words, panels, p, first, num_rows - r,
                                      out + r * panels->num_outputs, FEW_ROWS, WIDE_PANELS);
        for (; p < panels->num_panels; p++)
            for (int64_t r = 0; r < num_rows; r += MANY_ROWS)
                LEVEL(multiply_block)(words + r * BLOCK_WORDS, num_words, panels, p, first, num_rows - r,
                                      out + r * panels->num_outputs, MANY_ROWS, 1);
    }
}

/* Sparse: the weights of two columns are interleaved, and each pair meets the two codes. Registers interleave within
 * each 128 bits, so that outputs lie in an order that brings sums out in theirs. */
INLINE int64_t LEVEL(place_of)(int64_t output) {
#if LEVEL_LANES >= 8 || defined(__SSE2__)
    const int64_t i = output % (2 * LANES), half = i / LANES, lane = i % LANES;
    return output - i + lane / 4 * 8 + half * 4 + lane % 4;
#else
    return output;
#endif
}

/* Columns first .. first + TABLE_COLUMNS - 1. */
static void LEVEL(fill_table)(const weight_rows *weight, int64_t first, const weight_table *table) {
    const int64_t num_columns = least(TABLE_COLUMNS, weight->dim - first);
    for (int64_t output = 0; output < table->row_length; output++) {
        int16_t *place = table->weights + first * table->row_length + LEVEL(place_of)(output);
        const int8_t *weights = weight->codes + output * weight->dim + first;
        if (output < weight->num_outputs)
            for (int64_t k = 0; k < num_columns; k++) place[k * table->row_length] = weights[k];
        else
            for (int64_t k = 0; k < num_columns; k++) place[k * table->row_length] = 0;
    }
}

/* Which of SCAN_BYTES codes are not zero, a bit each. */
INLINE uint64_t LEVEL(find_codes)(const uint8_t *codes) {
#if LEVEL_LANES == 16
    const __m512i all = _mm512_loadu_si512(codes);
    return _mm512_test_epi8_mask(all, all);
#elif LEVEL_LANES == 8
    const __m256i low = _mm256_loadu_si256((const __m256i *)codes), zero = _mm256_setzero_si256();
    const __m256i high = _mm256_loadu_si256((const __m256i *)(codes + 32));
    const uint64_t bottom = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, zero));
    return ~(bottom | (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, zero)) << 32);
#else
    uint64_t found = 0;
    for (int i = 0; i < SCAN_BYTES; i += 8) {
        uint64_t eight;
        memcpy(&eight, codes + i, 8);
        if (!eight) continue;
        for (int j = 0; j < 8; j++) found |= (uint64_t)(codes[i + j] != 0) << (i + j);
    }
    return found;
#endif
}

static void LEVEL(list_entries)(const code_rows *rows, int64_t row, row_entries *entries) {
    const uint8_t *codes = rows->codes + row * rows->dim;
    int64_t count = 0;
    for (int64_t first = 0; first < rows->dim; first += SCAN_BYTES) {
        const int64_t num_columns = least(SCAN_BYTES, rows->dim - first);
        uint8_t last[SCAN_BYTES] = {0};
        if (num_columns < SCAN_BYTES) memcpy(last, codes + first, (size_t)num_columns);
        uint64_t found = LEVEL(find_codes)(num_columns < SCAN_BYTES ? last : codes + first);
        for (; found; found &= found - 1) {
            const int64_t column = first + __builtin_ctzll(found);
            entries->column[count] = (int32_t)column;
            entries->code[count++] = rows->is_signed ? (int8_t)codes[column] : codes[column];
        }
    }
    if (count % 2) {
        entries->column[count] = 0;
        entries->code[count++] = 0;
    }
    entries->count = count;
}

/* Two sums, of 2 LANES outputs, + codes times the weights of two columns. */
INLINE void LEVEL(add_pair)(vector_i32 *sum, const int16_t *first, const int16_t *second, const int16_t *code) {
    int32_t both;
    memcpy(&both, code, sizeof both);
    const vector_i32 codes = (vector_i32){0} + both;
#if LEVEL_LANES == 16
    const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
    sum[0] += (vector_i32)_mm512_madd_epi16(_mm512_unpacklo_epi16(a, b), (__m512i)codes);
    sum[1] += (vector_i32)_mm512_madd_epi16(_mm512_unpackhi_epi16(a, b), (__m512i)codes);
#elif LEVEL_LANES == 8
    const __m256i a = _mm256_loadu_si256((const __m256i *)first), b = _mm256_loadu_si256((const __m256i *)second);
    sum[0] += (vector_i32)_mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), (__m256i)codes);
    sum[1] += (vector_i32)_mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), (__m256i)codes);
#elif defined(__SSE2__)
    const __m128i a = _mm_loadu_si128((const __m128i *)first), b = _mm_loadu_si128((const __m128i *)second);
    sum[0] += (vector_i32)_mm_madd_epi16(_mm_unpacklo_epi16(a, b), (__m128i)codes);
    sum[1] += (vector_i32)_mm_madd_epi16(_mm_unpackhi_epi16(a, b), (__m128i)codes);
#else
    for (int lane = 0; lane < LANES; lane++) {
        sum[0][lane] += code[0] * first[lane] + code[1] * second[lane];
        sum[1][lane] += code[0] * first[LANES + lane] + code[1] * second[LANES + lane];
    }
#endif
}

/* num_pairs * 2 * LANES outputs of one row from output `first` on. */
INLINE void LEVEL(sum_outputs)(const row_entries *entries, const weight_table *table, int64_t first, int32_t *out,
                               const int num_pairs) {
    vector_i32 sum[8];
#pragma GCC unroll 8
    for (int v = 0; v < 2 * num_pairs; v++) sum[v] = (vector_i32){0};
    for (int64_t e = 0; e < entries->count; e += 2) {
        const int16_t *weights[2];
        for (int i = 0; i < 2; i++) weights[i] = table->weights + entries->column[e + i] * table->row_length + first;
#pragma GCC unroll 4
        for (int v = 0; v < num_pairs; v++)
            LEVEL(add_pair)(sum + 2 * v, weights[0] + 2 * v * LANES, weights[1] + 2 * v * LANES, entries->code + e);
    }
    memcpy(out + first, sum, (size_t)least(2 * num_pairs * LANES, table->num_outputs - first) * 4);
}

/* One row of sums. */
static void LEVEL(sum_entries)(const row_entries *entries, const weight_table *table, int32_t *out) {
    int64_t first = 0;
    for (; first + 4 * LANES < table->num_outputs; first += 8 * LANES)
        if (first + 8 * LANES <= table->row_length)
            LEVEL(sum_outputs)(entries, table, first, out, 4);
        else
            break;
    for (; first < table->num_outputs; first += 2 * LANES) LEVEL(sum_outputs)(entries, table, first, out, 1);
}

/* Zeros among `count` codes; the bits that their magnitudes have are added to *seen. */
static int64_t LEVEL(survey_block)(const uint8_t *codes, int64_t count, int is_signed, int *seen) {
    const uint8_t sign = is_signed ? 255 : 0;
    uint8_t bits = 0;
    int64_t num_zeros = 0;
    for (int64_t first = 0; first < count; first += 128) { /* so many bytes of 0 and 1 fill no byte */
        uint8_t block_zeros = 0;
        const int64_t last = least(first + 128, count);
        for (int64_t k = first; k < last; k++) {
            bits |= codes[k] ^ (uint8_t)((0 - (codes[k] >> 7)) & sign);
            block_zeros += codes[k] == 0;
        }
        num_zeros += block_zeros;
    }
    *seen |= bits;
    return num_zeros;
}
