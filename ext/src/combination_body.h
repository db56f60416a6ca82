#include "vector.h"
#include "code_products_body.h"

/* Rows of one task, a multiple of ROWS; their words stay in the nearest cache. */
#undef TASK_ROWS
#ifdef LEVEL_TILES
#define TASK_ROWS 32
#else
#define TASK_ROWS 24
#endif

/* What is added to a code: products of bytes take unsigned codes. */
#undef OFFSET
#define OFFSET(is_signed) (WORD == 4 && (is_signed) ? 128 : 0)

static void LEVEL(fill_weights)(const weight_rows *weight, int64_t p, int is_signed, const weight_panels *panels) {
    LEVEL(lay_out_panel)(weight, p, OFFSET(is_signed), panels, p);
}

/* Codes k .. k + count - 1 of a row as words, the last one filled with zeros. */
INLINE void LEVEL(fill_words)(const uint8_t *codes, int64_t count, int is_signed, uint32_t *words) {
    if (count % WORD) words[count / WORD] = 0;
#ifdef LEVEL_SUMS_BYTES
    uint8_t *bytes = (uint8_t *)words;
    const uint8_t offset = OFFSET(is_signed);
    for (int64_t k = 0; k < count; k++) bytes[k] = codes[k] ^ offset;
#else
    int16_t *halves = (int16_t *)words;
    if (is_signed)
        for (int64_t k = 0; k < count; k++) halves[k] = (int8_t)codes[k];
    else
        for (int64_t k = 0; k < count; k++) halves[k] = codes[k];
#endif
}

/* TASK_ROWS rows from first_row on. */
static void LEVEL(multiply_task)(const code_rows *rows, const weight_panels *panels, int64_t first_row,
                                 uint32_t *words, int32_t *out) {
    const int64_t num_rows = least(TASK_ROWS, rows->num_rows - first_row), next_row = first_row + TASK_ROWS;
    out += first_row * panels->num_outputs;
    for (int64_t first = 0; first == 0 || first < panels->num_words; first += BLOCK_WORDS) {
        const int64_t num_words = least(BLOCK_WORDS, panels->num_words - first);
        for (int64_t r = 0; r < num_rows; r++)
            LEVEL(fill_words)(rows->codes + (first_row + r) * rows->dim + first * WORD,
                              least(num_words * WORD, rows->dim - first * WORD), rows->is_signed,
                              words + r * BLOCK_WORDS);
        const uint8_t *next = rows->codes + next_row * rows->dim + first * WORD;
        LEVEL(multiply_words)((const uint8_t *)words, BLOCK_WORDS * 4, num_rows, num_words, panels, first, out,
                              next_row + TASK_ROWS <= rows->num_rows ? next : NULL, rows->dim);
    }
}

static int64_t LEVEL(task_rows)(void) { return TASK_ROWS; }

/* Zeros among `count` codes; the bits that their magnitudes have are added to *seen. */
static int64_t LEVEL(survey_block)(const uint8_t *codes, int64_t count, int is_signed, int *seen) {
    const uint8_t sign = is_signed ? 255 : 0;
    uint8_t bits = 0;
    int64_t num_zeros = 0;
    for (int64_t first = 0; first < count; first += 128) { /* counts up to 128 fit a byte */
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
