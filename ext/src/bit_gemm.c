#include "bit_gemm.h"

#include <stdlib.h>

#define CHUNK_COLUMNS 512 /* of one task, a multiple of 128 */
#define BLOCK_ROWS 32     /* of one task: their sums and one panel stay in the nearest cache */
#define BLOCK_TILE_ROWS (BLOCK_ROWS / TILE_ROWS)
#define TILE_WORDS (TILE_ROWS * STEP_WORDS)
#define CACHE_LINE 64

enum { WHOLE_LINES, LISTED_TILES, REUSED_TILES };

/* Eight rows of the left matrix with the steps that are multiplied; `tile` is NULL where they are whole lines. */
typedef struct {
    const uint32_t *words;
    int64_t row_words, plane_words, num_steps;
    int num_planes, reuses_tiles;
    const int32_t *tile, *step;
} left_rows;

/* The right matrix in the order in which it is read. */
typedef struct {
    uint32_t *words;
    int64_t panel_words, plane_words, step_words;
    int num_planes;
} right_panels;

#define BODY "bit_gemm_body.h"
#include "levels.h"
#if HAS_AVX512
/* Ice Lake, Zen 4 and later count bits in one instruction. */
BEGIN_TARGET(AVX512_BITS)
#define LEVEL_NAME counting
#define LEVEL_LANES 16
#define LEVEL_COUNTS_BITS
#include BODY
#undef LEVEL_COUNTS_BITS
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
#define KERNEL(name) {PORTABLE_OF(name), AVX2_OF(name), name##_avx512, name##_counting}
#else
#define KERNEL(name) ALL_LEVELS(name)
#endif

typedef void (*multiply_function)(const left_rows *, const right_panels *, const uint32_t *, int32_t *);
typedef void (*fill_function)(const bit_columns *, int64_t, int64_t, const right_panels *, uint32_t *);
typedef void (*finish_function)(const product_out *, int64_t, int64_t, int64_t, const int32_t *);
static const multiply_function MULTIPLY[] = KERNEL(multiply_tile_row);
static const fill_function FILL[] = KERNEL(fill_panel);
static const finish_function FINISH[] = KERNEL(finish_row);
static const int PANEL_COLUMNS[] = {4, 8, 16, 16};

/* simd_level(), or 3 where AVX-512 may count bits. */
static int kernel_number(void) { return simd_counts_bits() ? 3 : simd_level(); }

static int is_zero(const uint32_t *tile) {
    uint64_t any = 0, words[TILE_WORDS / 2];
    memcpy(words, tile, sizeof words);
    for (int w = 0; w < TILE_WORDS / 2; w++) any |= words[w];
    return any == 0;
}

/* Eight rows from tile row r on. `tile` and `step` have room for every tile of the row. */
static left_rows rows_at(const bit_rows *a, int64_t r, int32_t *tile, int32_t *step) {
    const int64_t line_words = a->num_steps * STEP_WORDS;
    left_rows rows = {.num_planes = a->num_planes, .reuses_tiles = a->reuses_tiles};
    if (!a->tile_begin) {
        rows.words = a->words + r * TILE_ROWS * line_words;
        rows.row_words = line_words;
        rows.plane_words = a->num_rows * line_words;
        rows.num_steps = a->num_steps;
        return rows;
    }
    const int64_t begin = a->tile_begin[r], end = a->tile_begin[r + 1];
    rows.words = a->words + begin * TILE_WORDS;
    rows.row_words = STEP_WORDS;
    for (int64_t e = begin; e < end; e++) {
        if (a->skips_zeros && is_zero(a->words + e * TILE_WORDS)) continue;
        tile[rows.num_steps] = (int32_t)(e - begin);
        step[rows.num_steps++] = a->tile_step[e];
    }
    rows.tile = tile;
    rows.step = step;
    return rows;
}

/* Prefetch share `part` of num_parts of the next task's rows: a task reads all its rows at once, too soon for the
 * processor's own prefetching. */
static void prefetch_next(const bit_rows *a, int64_t first_row, int64_t part, int64_t num_parts) {
    const int64_t next = first_row + BLOCK_ROWS, end = next + BLOCK_ROWS < a->num_rows ? next + BLOCK_ROWS : a->num_rows;
    if (next >= end) return;
    const int64_t line_words = a->num_steps * STEP_WORDS;
    for (int i = 0; i < a->num_planes; i++) {
        const int64_t begin = a->tile_begin ? a->tile_begin[next / TILE_ROWS] * TILE_WORDS
                                            : (i * a->num_rows + next) * line_words;
        const int64_t stop = a->tile_begin ? a->tile_begin[end / TILE_ROWS] * TILE_WORDS
                                           : (i * a->num_rows + end) * line_words;
        const int64_t size = stop - begin, last = begin + size * (part + 1) / num_parts;
        for (int64_t w = begin + size * part / num_parts; w < last; w += CACHE_LINE / 4)
            __builtin_prefetch(a->words + w, 0, 2);
    }
}

/* One task: BLOCK_ROWS rows, CHUNK_COLUMNS columns. Returns the steps of 8 rows that were multiplied. */
static int64_t multiply_block(const bit_rows *a, const right_panels *b, const product_out *out, int kernel,
                              int64_t first_row, int64_t first_column, int32_t *scratch) {
    const int64_t rows_left = a->num_rows - first_row, columns_left = out->num_columns - first_column;
    const int64_t num_tile_rows = (rows_left < BLOCK_ROWS ? rows_left : BLOCK_ROWS) / TILE_ROWS;
    const int64_t num_columns = columns_left < CHUNK_COLUMNS ? columns_left : CHUNK_COLUMNS;
    int32_t sums[BLOCK_ROWS * CHUNK_COLUMNS] __attribute__((aligned(64)));
    left_rows rows[BLOCK_TILE_ROWS];
    int64_t num_multiplied = 0;
    for (int64_t r = 0; r < num_tile_rows; r++) {
        int32_t *tile = scratch + 2 * r * a->num_steps;
        rows[r] = rows_at(a, first_row / TILE_ROWS + r, tile, tile + a->num_steps);
        num_multiplied += rows[r].num_steps;
    }
    const int64_t num_panels = (num_columns + PANEL_COLUMNS[kernel] - 1) / PANEL_COLUMNS[kernel];
    for (int64_t c = 0; c < num_columns; c += PANEL_COLUMNS[kernel]) {
        const uint32_t *panel = b->words + (first_column + c) / PANEL_COLUMNS[kernel] * b->panel_words;
        for (int64_t r = 0; r < num_tile_rows; r++) {
            if (first_column == 0)
                prefetch_next(a, first_row, c / PANEL_COLUMNS[kernel] * num_tile_rows + r, num_panels * num_tile_rows);
            MULTIPLY[kernel](&rows[r], b, panel, sums + r * TILE_ROWS * CHUNK_COLUMNS + c);
        }
    }
    for (int64_t r = 0; r < num_tile_rows * TILE_ROWS && first_row + r < out->num_rows; r++)
        FINISH[kernel](out, first_row + r, first_column, num_columns, sums + r * CHUNK_COLUMNS);
    return num_multiplied;
}

static int64_t multiply_all(const bit_rows *a, const right_panels *b, const product_out *out, int kernel) {
    const int64_t num_blocks = (a->num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const int64_t num_chunks = (out->num_columns + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS;
    int64_t num_multiplied = 0;
    int is_short = 0;
#pragma omp parallel reduction(+ : num_multiplied) reduction(| : is_short)
    {
        int32_t *scratch = malloc((size_t)(2 * BLOCK_TILE_ROWS * a->num_steps + 1) * 4);
        is_short = !scratch;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < num_blocks * num_chunks; task++) {
            if (!scratch) continue;
            const int64_t chunk = task / num_blocks, block = task % num_blocks;
            const int64_t done = multiply_block(a, b, out, kernel, block * BLOCK_ROWS, chunk * CHUNK_COLUMNS, scratch);
            num_multiplied += chunk == 0 ? done : 0;
        }
        free(scratch);
    }
    return is_short ? -1 : num_multiplied;
}

int64_t bit_product(bit_rows a, bit_columns b, product_out out) {
    const int kernel = kernel_number();
    const int64_t width = PANEL_COLUMNS[kernel], num_panels = (b.num_lines + width - 1) / width;
    const int64_t step_words = width * STEP_WORDS, panel_words = a.num_steps * b.num_planes * step_words;
    right_panels panels = {.panel_words = panel_words, .num_planes = b.num_planes};
    /* A reused tile is multiplied by all planes of its step, so these lie together. */
    panels.step_words = a.reuses_tiles ? b.num_planes * step_words : step_words;
    panels.plane_words = a.reuses_tiles ? step_words : a.num_steps * step_words;
    panels.words = aligned_alloc(64, (size_t)(num_panels * panel_words * 4 + 63) / 64 * 64 + 64);
    if (!panels.words) return -1;
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < num_panels; p++)
        FILL[kernel](&b, a.num_steps, p * width, &panels, panels.words + p * panel_words);
    const int64_t num_multiplied = multiply_all(&a, &panels, &out, kernel);
    free(panels.words);
    return num_multiplied;
}
