/* Each thread here multiplies a batch with the functions of bit_gemm.c, which is therefore compiled in. */
#include "bit_gemm.c"

#include "batch_tiles.h"

#define BYTE_ROWS 8 /* rows that share a byte of a plane */

#undef BODY
#define BODY "batch_tiles_body.h"
#include "levels.h"

typedef void (*pack_function)(const int8_t *, int64_t, const signed_rows *, uint8_t *, int64_t, int64_t);
static const pack_function PACK[] = ALL_LEVELS(pack_columns);

/* As bit_product, in the thread that calls it. */
static int64_t product_in_thread(const bit_rows *a, const bit_columns *b, const product_out *out) {
    const int kernel = kernel_number();
    const int64_t width = PANEL_COLUMNS[kernel], num_panels = (out->num_columns + width - 1) / width;
    const int64_t step_words = width * STEP_WORDS;
    right_panels panels = {.panel_words = a->num_steps * b->num_planes * step_words, .plane_words = step_words,
                           .step_words = b->num_planes * step_words, .num_planes = b->num_planes};
    int32_t *scratch = malloc((size_t)(2 * BLOCK_TILE_ROWS * a->num_steps + 1) * 4);
    panels.words = aligned_alloc(64, (size_t)(num_panels * panels.panel_words * 4 + 63) / 64 * 64 + 64);
    int64_t num_multiplied = scratch && panels.words ? 0 : -1;
    for (int64_t p = 0; p < num_panels && num_multiplied == 0; p++)
        FILL[kernel](b, a->num_steps, p * width, &panels, panels.words + p * panels.panel_words);
    for (int64_t column = 0; column < out->num_columns && num_multiplied >= 0; column += CHUNK_COLUMNS)
        for (int64_t row = 0; row < a->num_rows; row += BLOCK_ROWS) {
            const int64_t done = multiply_block(a, &panels, out, kernel, row, column, scratch);
            num_multiplied += column ? 0 : done;
        }
    free(panels.words);
    free(scratch);
    return num_multiplied;
}

/* Sum one batch, whose rows are `h`; returns the number of its tiles, or -1. A batch that is alone gets all threads. */
static int64_t sum_batch(const batch_tiles *a, const signed_rows *h, int64_t b, int is_alone, int32_t *sums) {
    const int64_t begin = a->row_begin[b], num_rows = a->row_begin[b + 1] - begin;
    const int64_t num_steps = (num_rows + 32 * STEP_WORDS - 1) / (32 * STEP_WORDS);
    const int64_t num_lines = (h->dim + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS, line_bytes = num_steps * STEP_WORDS * 4;
    uint8_t *planes = calloc((size_t)(h->bit_width * num_lines * line_bytes) + 1, 1);
    if (!planes) return -1;
    PACK[simd_level()](h->codes, num_rows, h, planes, num_lines, line_bytes);
    const int64_t tile_row = a->tile_row_begin[b];
    const bit_rows left = {.words = a->tile_words, .num_rows = (a->tile_row_begin[b + 1] - tile_row) * TILE_ROWS,
                           .num_steps = num_steps, .num_planes = 1, .tile_begin = a->tile_begin + tile_row,
                           .tile_step = a->tile_column, .reuses_tiles = 1};
    const bit_columns right = {(const uint32_t *)planes, num_lines, h->bit_width};
    const product_out out = {.kind = OUT_SUMS, .out = sums, .num_rows = num_rows, .num_columns = h->dim};
    const int64_t num_multiplied = is_alone ? bit_product(left, right, out) : product_in_thread(&left, &right, &out);
    for (int64_t v = 0; v < num_rows; v++) {
        const int32_t added = (int32_t)((a->indptr[begin + v + 1] - a->indptr[begin + v]) << (h->bit_width - 1));
        for (int64_t j = 0; j < h->dim; j++) sums[v * h->dim + j] -= added;
    }
    free(planes);
    return num_multiplied;
}

int64_t sum_batch_tiles(batch_tiles a, signed_rows h, int64_t first, int64_t end, int32_t *out) {
    int64_t num_multiplied = 0;
    int is_short = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : num_multiplied) reduction(| : is_short) if (end - first > 1)
    for (int64_t b = first; b < end; b++) {
        const signed_rows own = {h.codes + a.row_begin[b] * h.dim, h.dim, h.bit_width};
        const int64_t done = sum_batch(&a, &own, b, end - first == 1, out + (a.row_begin[b] - a.row_begin[first]) * h.dim);
        is_short |= done < 0;
        num_multiplied += done;
    }
    return is_short ? -1 : num_multiplied;
}
