#include "vector.h"
#include "word_dots_body.h"

/* A task's codes become words, and each word meets a register of weights, LANES outputs. Sums of ROWS rows and one or
 * two panels stay in registers. */
#undef ROWS
#if LEVEL_LANES == 16
#define ROWS 12
#else
#define ROWS 4
#endif

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

/* Sums of LANES outputs, or of the num_outputs that are left, added to what is at `out`, or to a base of LANES. */
INLINE void LEVEL(add_sums)(vector_i32 sum, const int32_t *base, int64_t num_outputs, int32_t *out) {
    const vector_f32 before = base ? LEVEL(load_f32)((const float *)base)
                                   : LEVEL(load_columns)(out, 0, num_outputs, STORAGE_F32);
    LEVEL(store_columns)(out, 0, num_outputs, STORAGE_F32, (vector_f32)((vector_i32)before + sum));
}

/* ROWS rows of words times num_panels panels, added to `out`, or to the base where first_word is 0. Where `next` is
 * given, it is codes of ROWS rows of dim columns, which are fetched meanwhile. */
INLINE void LEVEL(multiply_block)(const uint32_t *rows, int64_t num_words, const weight_panels *panels, int64_t p,
                                  int64_t first_word, int64_t rows_left, int32_t *out, const uint8_t *next, int64_t dim,
                                  const int num_panels) {
    const int64_t panel_words = panels->num_words * LANES, outputs_left = panels->num_outputs - p * LANES;
    const uint32_t *weights = panels->words + p * panel_words + first_word * LANES;
    vector_i32 sum[ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < num_panels; v++) sum[r][v] = (vector_i32){0};
    for (int64_t w = 0; w < num_words; w++) {
        if (next && w % (CACHE_LINE / WORD) == 0)
            for (int r = 0; r < ROWS; r++) __builtin_prefetch(next + r * dim + w * WORD, 0, 2);
        vector_i32 columns[2];
#pragma GCC unroll 2
        for (int v = 0; v < num_panels; v++)
            columns[v] = (vector_i32)LEVEL(load_f32)((const float *)weights + v * panel_words + w * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            const vector_i32 codes = (vector_i32){0} + (int32_t)rows[r * BLOCK_WORDS + w];
#pragma GCC unroll 2
            for (int v = 0; v < num_panels; v++) sum[r][v] = LEVEL(add_dots)(sum[r][v], codes, columns[v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
        if (r == rows_left) break;
#pragma GCC unroll 2
        for (int v = 0; v < num_panels; v++)
            LEVEL(add_sums)(sum[r][v], first_word ? NULL : panels->base + (p + v) * LANES, outputs_left - v * LANES,
                            out + r * panels->num_outputs + (p + v) * LANES);
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
        for (int64_t p = 0; p < panels->num_panels; p += 2)
            for (int64_t r = 0; r < num_rows; r += ROWS) {
                const int64_t next_row = first_row + r + TASK_ROWS;
                const int is_fetched = p == 0 && next_row + ROWS <= rows->num_rows;
                const uint8_t *next = is_fetched ? rows->codes + next_row * rows->dim + first * WORD : NULL;
                int32_t *sums = out + r * panels->num_outputs;
                if (p + 2 <= panels->num_panels)
                    LEVEL(multiply_block)(words + r * BLOCK_WORDS, num_words, panels, p, first, num_rows - r, sums,
                                          next, rows->dim, 2);
                else
                    LEVEL(multiply_block)(words + r * BLOCK_WORDS, num_words, panels, p, first, num_rows - r, sums,
                                          next, rows->dim, 1);
            }
    }
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
