/* Rows of bytes times weight codes. Included by kernel bodies once per SIMD level, after vector.h and code_products.h.
 *
 * A row's codes lie in words of WORD codes; each word is multiplied by a register of weights of LANES outputs. A level
 * of tiles (LEVEL_TILES) takes 16 rows of 64 bytes at once, and a panel's words are a tile of weights in memory. */
#include "word_dots_body.h"

/* Rows whose sums stay in registers, with two panels. */
#undef ROWS
#if defined(LEVEL_TILES)
#define ROWS 16
#elif LEVEL_LANES == 16
#define ROWS 12
#else
#define ROWS 4
#endif

/* The number of words of a panel is a multiple of this. */
#undef WORDS_TOGETHER
#ifdef LEVEL_TILES
#define WORDS_TOGETHER 16
#else
#define WORDS_TOGETHER 1
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

/* Panel p of the weights, as panel number `place`. Rows come with `offset` added to each code. */
static void LEVEL(lay_out_panel)(const weight_rows *weight, int64_t p, int offset, const weight_panels *panels,
                                 int64_t place) {
    uint32_t *words = panels->words + place * panels->num_words * LANES;
    for (int64_t lane = 0; lane < LANES; lane++) {
        const int64_t output = p * LANES + lane, dim = output < weight->num_outputs ? weight->dim : 0;
        const int8_t *weights = dim ? weight->codes + output * dim : NULL;
        int32_t sum = 0;
        for (int64_t k = 0; k < dim; k++) sum += weights[k];
        for (int64_t w = 0; w < dim / WORD; w++) words[w * LANES + lane] = LEVEL(weight_word)(weights + w * WORD, WORD);
        for (int64_t w = dim / WORD; w < panels->num_words; w++)
            words[w * LANES + lane] = w * WORD < dim ? LEVEL(weight_word)(weights + w * WORD, dim - w * WORD) : 0;
        panels->base[place * LANES + lane] = -offset * sum;
    }
}

/* Unsigned codes as 16 bits each, the last word of two filled with zeros. */
INLINE void LEVEL(widen_bytes_to_words)(const uint8_t *codes, int64_t count, uint16_t *halves) {
#pragma omp simd
    for (int64_t k = 0; k < count; k++) halves[k] = codes[k];
    if (count % 2) halves[count] = 0;
}

/* Adds sums of LANES outputs, or of the num_outputs that are left, to `base` if given, else to `out`; writes `out`. */
INLINE void LEVEL(add_sums)(vector_i32 sum, const int32_t *base, int64_t num_outputs, int32_t *out) {
    const vector_f32 before = base ? LEVEL(load_f32)((const float *)base)
                                   : LEVEL(load_columns)(out, 0, num_outputs, STORAGE_F32);
    LEVEL(store_columns)(out, 0, num_outputs, STORAGE_F32, (vector_f32)((vector_i32)before + sum));
}

#ifdef LEVEL_TILES
#define WORD_BYTES 64

/* Begins tile number `tile` of sums: with the base, the same in all rows, or with the sums so far. */
#define BEGIN_TILE(tile) \
    if (num_panels > tile) { \
        if (is_first) \
            _tile_loadd(tile, panels->base + (p + tile) * LANES, 0); \
        else \
            _tile_loadd(tile, to + tile * LANES, to_stride); \
    }
#define MULTIPLY_TILE(tile, weights) \
    if (num_panels > tile) { \
        _tile_loadd(weights, words + tile * panel_words + w * LANES, WORD_BYTES); \
        _tile_dpbusd(tile, 4, weights); \
    }
#define END_TILE(tile) \
    if (num_panels > tile) _tile_stored(tile, to + tile * LANES, to_stride);

/* 16 rows of words, `stride` bytes apart, times num_panels <= 4 panels from p on; words from first_word on. If tiles
 * pass the last row or output, sums go to `beside` first. */
INLINE void LEVEL(multiply_tiles)(const uint8_t *rows, int64_t stride, int64_t num_words, const weight_panels *panels,
                                  int64_t p, int64_t first_word, int64_t rows_left, int32_t *out,
                                  const int num_panels) {
    const int64_t panel_words = panels->num_words * LANES, outputs_left = panels->num_outputs - p * LANES;
    const uint32_t *words = panels->words + p * panel_words + first_word * LANES;
    const int is_whole = rows_left >= ROWS && outputs_left >= num_panels * LANES, is_first = first_word == 0;
    int32_t beside[ROWS * 4 * LANES] __attribute__((aligned(64)));
    int32_t *sums = out + p * LANES, *to = is_whole ? sums : beside;
    const int64_t sums_stride = panels->num_outputs, to_stride = is_whole ? sums_stride * 4 : 4 * LANES * 4;
    const int64_t num_rows = least(rows_left, ROWS), num_outputs = least(outputs_left, num_panels * LANES);
    if (!is_whole && !is_first) {
        memset(beside, 0, sizeof beside);
        for (int64_t r = 0; r < num_rows; r++)
            memcpy(beside + r * 4 * LANES, sums + r * sums_stride, (size_t)num_outputs * 4);
    }
    BEGIN_TILE(0)
    BEGIN_TILE(1)
    BEGIN_TILE(2)
    BEGIN_TILE(3)
    for (int64_t w = 0; w < num_words; w += WORDS_TOGETHER) {
        _tile_loadd(4, rows + w * WORD, stride);
        MULTIPLY_TILE(0, 5)
        MULTIPLY_TILE(1, 6)
        MULTIPLY_TILE(2, 7)
        MULTIPLY_TILE(3, 5)
    }
    END_TILE(0)
    END_TILE(1)
    END_TILE(2)
    END_TILE(3)
    if (!is_whole)
        for (int64_t r = 0; r < num_rows; r++)
            memcpy(sums + r * sums_stride, beside + r * 4 * LANES, (size_t)num_outputs * 4);
}
#undef BEGIN_TILE
#undef MULTIPLY_TILE
#undef END_TILE
#undef WORD_BYTES
#else

/* ROWS rows of words, `stride` bytes apart, times num_panels panels, added to `out`, or to the base where first_word is
 * 0. `next`, if given, holds codes of ROWS rows of dim columns, which are prefetched meanwhile. */
INLINE void LEVEL(multiply_block)(const uint8_t *rows, int64_t stride, int64_t num_words, const weight_panels *panels,
                                  int64_t p, int64_t first_word, int64_t rows_left, int32_t *out, const uint8_t *next,
                                  int64_t dim, const int num_panels) {
    const int64_t panel_words = panels->num_words * LANES, outputs_left = panels->num_outputs - p * LANES;
    const uint32_t *weights = panels->words + p * panel_words + first_word * LANES;
    vector_i32 sum[ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < num_panels; v++) sum[r][v] = (vector_i32){0};
    for (int64_t w = 0; w < num_words; w++) {
        if (next && w % (64 / WORD) == 0)
            for (int r = 0; r < ROWS; r++) __builtin_prefetch(next + r * dim + w * WORD, 0, 2);
        vector_i32 columns[2];
#pragma GCC unroll 2
        for (int v = 0; v < num_panels; v++)
            columns[v] = (vector_i32)LEVEL(load_f32)((const float *)weights + v * panel_words + w * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            int32_t word;
            memcpy(&word, rows + r * stride + 4 * w, sizeof word);
            const vector_i32 codes = (vector_i32){0} + word;
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
#endif

/* num_rows rows of words, `stride` bytes apart, times all panels, added to `out`, rows of panels->num_outputs, or to
 * the base where first_word is 0. Whole blocks of ROWS rows are read. `next`, if given, holds codes of as many rows of
 * dim columns, which are prefetched meanwhile. */
static void LEVEL(multiply_words)(const uint8_t *rows, int64_t stride, int64_t num_rows, int64_t num_words,
                                  const weight_panels *panels, int64_t first_word, int32_t *out, const uint8_t *next,
                                  int64_t dim) {
#ifdef LEVEL_TILES
    (void)next, (void)dim;
    for (int64_t p = 0; p < panels->num_panels; p += 4)
        for (int64_t r = 0; r < num_rows; r += ROWS) {
            const uint8_t *block = rows + r * stride;
            int32_t *sums = out + r * panels->num_outputs;
            switch (least(panels->num_panels - p, 4)) {
            case 1: LEVEL(multiply_tiles)(block, stride, num_words, panels, p, first_word, num_rows - r, sums, 1); break;
            case 2: LEVEL(multiply_tiles)(block, stride, num_words, panels, p, first_word, num_rows - r, sums, 2); break;
            case 3: LEVEL(multiply_tiles)(block, stride, num_words, panels, p, first_word, num_rows - r, sums, 3); break;
            default: LEVEL(multiply_tiles)(block, stride, num_words, panels, p, first_word, num_rows - r, sums, 4);
            }
        }
#else
    for (int64_t p = 0; p < panels->num_panels; p += 2)
        for (int64_t r = 0; r < num_rows; r += ROWS) {
            const uint8_t *block = rows + r * stride, *fetched = next && p == 0 ? next + r * dim : NULL;
            int32_t *sums = out + r * panels->num_outputs;
            if (p + 2 <= panels->num_panels)
                LEVEL(multiply_block)(block, stride, num_words, panels, p, first_word, num_rows - r, sums, fetched, dim, 2);
            else
                LEVEL(multiply_block)(block, stride, num_words, panels, p, first_word, num_rows - r, sums, fetched, dim, 1);
        }
#endif
}

/* Each thread calls these before and after its products. */
static void LEVEL(begin_products)(void) {
#ifdef LEVEL_TILES
    _tile_loadconfig(&WHOLE_TILES);
#endif
}

static void LEVEL(end_products)(void) {
#ifdef LEVEL_TILES
    _tile_release();
#endif
}
