#include "vector.h"
#include "bit_planes_body.h"

/* Codes of columns first .. first + n - 1 of a row. */
INLINE void LEVEL(codes_at)(const code_source *source, int64_t row, int64_t first, int64_t n, int is_line,
                            float largest, uint8_t *codes) {
    const int64_t at = row * source->num_columns + first;
    if (!source->is_float) {
        memcpy(codes, (const uint8_t *)source->rows + at, (size_t)n);
        return;
    }
    const float *values = (const float *)source->rows + at, offset = source->offset;
    if (source->is_per_line && !is_line) {
        const float *low = source->low + first, *step = source->step + first;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) codes[j] = LEVEL(code_of)(values[j], low[j], step[j], offset, largest);
        return;
    }
    const float low = source->low[source->is_per_line ? row : 0], step = source->step[source->is_per_line ? row : 0];
#pragma omp simd
    for (int64_t j = 0; j < n; j++) codes[j] = LEVEL(code_of)(values[j], low, step, offset, largest);
}

/* One row becomes one line. */
static void LEVEL(pack_row)(const code_source *source, const bit_planes *planes, int64_t row) {
    const float largest = (float)((1 << planes->num_planes) - 1);
    for (int64_t first = 0; first < source->num_columns; first += CHUNK) {
        const int64_t left = source->num_columns - first, n = left < CHUNK ? left : CHUNK;
        uint8_t codes[CHUNK] = {0};
        LEVEL(codes_at)(source, row, first, n, 1, largest, codes);
        for (int p = 0; p < planes->num_planes; p++) {
            uint32_t *words = planes->words + (p * planes->num_padded + row) * planes->line_words + first / 32;
            for (int64_t w = 0; w * 32 < n; w++) words[w] = LEVEL(plane_word)(codes + 32 * w, p);
        }
    }
}

/* COLUMNS columns from `first` on become lines; a word takes 32 rows. */
static void LEVEL(pack_column_block)(const code_source *source, const bit_planes *planes, int64_t first) {
    const float largest = (float)((1 << planes->num_planes) - 1);
    const int64_t left = source->num_columns - first, n = left < COLUMNS ? left : COLUMNS;
    for (int64_t w = 0; w * 32 < source->num_rows; w++) {
        const int64_t rows_left = source->num_rows - 32 * w, num_rows = rows_left < 32 ? rows_left : 32;
        uint8_t codes[32][COLUMNS] = {{0}};
        for (int64_t r = 0; r < num_rows; r++) LEVEL(codes_at)(source, 32 * w + r, first, n, 0, largest, codes[r]);
        for (int p = 0; p < planes->num_planes; p++) {
            uint32_t word[COLUMNS] = {0};
            for (int64_t r = 0; r < num_rows; r++)
#pragma omp simd
                for (int c = 0; c < COLUMNS; c++) word[c] |= ((uint32_t)codes[r][c] >> p & 1) << r;
            for (int64_t c = 0; c < n; c++)
                planes->words[(p * planes->num_padded + first + c) * planes->line_words + w] = word[c];
        }
    }
}

static void LEVEL(unpack_line)(const bit_planes *planes, int64_t line, int64_t length, uint8_t *codes) {
    for (int64_t first = 0; first < length; first += 32) {
        const int64_t left = length - first, n = left < 32 ? left : 32;
        uint32_t code[32] = {0};
        for (int p = 0; p < planes->num_planes; p++) {
            const uint32_t word = planes->words[(p * planes->num_padded + line) * planes->line_words + first / 32];
#pragma omp simd
            for (int i = 0; i < 32; i++) code[i] |= (word >> i & 1) << p;
        }
        for (int64_t i = 0; i < n; i++) codes[first + i] = (uint8_t)code[i];
    }
}

static int64_t LEVEL(sum_line)(const bit_planes *planes, int64_t line) {
    int64_t sum = 0;
    for (int p = 0; p < planes->num_planes; p++) {
        const uint32_t *words = planes->words + (p * planes->num_padded + line) * planes->line_words;
        int64_t ones = 0;
        for (int64_t w = 0; w < planes->line_words; w++) ones += __builtin_popcount(words[w]);
        sum += ones << p;
    }
    return sum;
}
