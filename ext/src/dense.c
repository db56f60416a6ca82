#include "dense.h"

#include <omp.h>
#include <stdlib.h>

#define BLOCK_ROWS 96    /* rows that a task widens at once; a multiple of every level's ROWS */
#define BLOCK_DEPTH 256  /* terms of a sum that are widened at once: two vectors per term stay in the L1 cache */
#define GRADIENT_DEPTH 192 /* rows of both sides of a gradient that are widened at once */
#define TILE_ROWS 12     /* a multiple of every level's ROWS */
#define CHUNK_ROWS 768   /* least rows of a gradient that are summed apart */
#define MAX_CHUNKS 16
#define TASKS_A_THREAD 2
#define MAX_PANEL 32
#define MAX_SIDES 2
#define CACHE_LINE 64

/* One of the products that are summed. */
typedef struct {
    const dense_matrix *left;
    int64_t depth;
    const float *panels; /* of the right side */
} product_side;

typedef struct {
    product_side sides[MAX_SIDES];
    int num_sides;
    int64_t num_columns, num_panels; /* of the right sides */
    const float *first; /* what sums begin with, for whole panels */
    float *sums; /* BLOCK_ROWS by whole panels, of this thread, where sums take several blocks */
    float *block; /* BLOCK_ROWS by BLOCK_DEPTH, of this thread */
    int64_t rows_ahead; /* to the block that this thread is likely to take next */
} product_task;

typedef struct {
    int64_t left_columns, right_columns;
    /* GRADIENT_DEPTH rows, widened, tile after tile, of this thread: term t of row r of tile i is at
     * (i * GRADIENT_DEPTH + t) * ROWS + r */
    float *left;
    float *panel, *row; /* a panel of as many rows, and one row */
} gradient_task;

static int64_t blocks_of(int64_t count, int64_t size) { return (count + size - 1) / size; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Prefetch share `i` of `num_shares` of the cache lines in [begin, end), while other memory is worked on. */
static inline void fetch_share(const char *begin, const char *end, int64_t i, int64_t num_shares) {
    const int64_t num_lines = blocks_of(end - begin, CACHE_LINE);
    for (int64_t line = num_lines * i / num_shares; line < num_lines * (i + 1) / num_shares; line++)
        __builtin_prefetch(begin + line * CACHE_LINE, 0, 2);
}

#define BODY "dense_body.h"
#include "levels.h"

typedef void (*pack_function)(const dense_matrix *, int, int64_t, float *);
typedef void (*product_function)(const product_task *, int64_t, int64_t, int, char *);
typedef void (*gradient_function)(const dense_matrix *, const dense_matrix *, const gradient_task *, int64_t, int64_t,
                                  int64_t, int64_t, float *);
static const pack_function PACK_PANEL[] = ALL_LEVELS(pack_panel);
static const product_function MULTIPLY_BLOCK[] = ALL_LEVELS(multiply_block);
static const gradient_function SUM_CHUNK[] = ALL_LEVELS(sum_chunk);
static const int64_t PANEL_COLUMNS[] = ALL_LEVELS(PANEL_OF);

static int64_t whole_panels(int64_t num_columns) { return blocks_of(num_columns, MAX_PANEL) * MAX_PANEL; }

/* `depth` is that of all sides together. */
static int64_t product_thread_floats(int64_t depth, int num_sides, int64_t num_columns) {
    const int has_sums = num_sides > 1 || depth > BLOCK_DEPTH;
    return BLOCK_ROWS * BLOCK_DEPTH + (has_sums ? BLOCK_ROWS * whole_panels(num_columns) : 0);
}

int64_t dense_product_bytes(int64_t depth, int num_sides, int64_t num_columns) {
    return 4 * ((depth + 1) * whole_panels(num_columns) +
                omp_get_max_threads() * product_thread_floats(depth, num_sides, num_columns)) + CACHE_LINE;
}

static float *aligned(void *memory) {
    return (float *)(((uintptr_t)memory + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
}

static void sum_products(const dense_matrix *left, const dense_matrix *right, int num_sides, int is_transposed,
                         int is_added, const float *first, void *out, void *memory) {
    const int level = simd_level();
    const int64_t num_rows = left->num_rows, num_columns = is_transposed ? right->num_rows : right->num_columns;
    const int64_t num_panels = blocks_of(num_columns, PANEL_COLUMNS[level]), num_blocks = blocks_of(num_rows, BLOCK_ROWS);
    float *begin = aligned(memory), *panels = begin + whole_panels(num_columns);
    for (int64_t j = 0; j < whole_panels(num_columns); j++) begin[j] = first && j < num_columns ? first[j] : 0.0f;
    product_task shared = {.num_sides = num_sides, .num_columns = num_columns, .num_panels = num_panels,
                           .first = begin};
    int64_t depth = 0;
    for (int s = 0; s < num_sides; depth += left[s++].num_columns)
        shared.sides[s] = (product_side){left + s, left[s].num_columns, panels + depth * whole_panels(num_columns)};
    float *of_threads = panels + depth * whole_panels(num_columns);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t p = 0; p < num_sides * num_panels; p++) {
            const product_side *side = &shared.sides[p / num_panels];
            PACK_PANEL[level](right + p / num_panels, is_transposed, p % num_panels,
                              (float *)side->panels + p % num_panels * PANEL_COLUMNS[level] * side->depth);
        }
        product_task task = shared;
        task.block = of_threads + omp_get_thread_num() * product_thread_floats(depth, num_sides, num_columns);
        task.sums = task.block + BLOCK_ROWS * BLOCK_DEPTH;
        task.rows_ahead = omp_get_num_threads() * BLOCK_ROWS;
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < num_blocks; b++)
            MULTIPLY_BLOCK[level](&task, b * BLOCK_ROWS, least(BLOCK_ROWS, num_rows - b * BLOCK_ROWS), is_added,
                                  (char *)out);
    }
}

void dense_product(dense_matrix left, dense_matrix right, int is_transposed, int is_added, void *out, void *memory) {
    sum_products(&left, &right, 1, is_transposed, is_added, NULL, out, memory);
}

void dense_combination(const dense_matrix *left, const dense_matrix *right, int num_sides, const float *bias, void *out,
                       void *memory) {
    sum_products(left, right, num_sides, 1, 0, bias, out, memory);
}

/* Depends on the number of rows alone, so the order of the sums does too. */
static int64_t chunk_rows(int64_t num_rows) {
    const int64_t share = blocks_of(num_rows, MAX_CHUNKS);
    return blocks_of(share > CHUNK_ROWS ? share : CHUNK_ROWS, GRADIENT_DEPTH) * GRADIENT_DEPTH;
}

static int64_t whole_tiles(int64_t num_rows) { return blocks_of(num_rows, TILE_ROWS) * TILE_ROWS; }

static int64_t gradient_thread_floats(int64_t left_columns) {
    return GRADIENT_DEPTH * (whole_tiles(left_columns) + MAX_PANEL) + whole_panels(left_columns + TILE_ROWS);
}

int64_t dense_gradient_bytes(int64_t num_rows, int64_t left_columns, int64_t right_columns) {
    return 4 * (blocks_of(num_rows, chunk_rows(num_rows)) * left_columns * right_columns +
                omp_get_max_threads() * gradient_thread_floats(left_columns)) + 2 * CACHE_LINE;
}

void dense_gradient(dense_matrix left, dense_matrix right, float *out, void *memory) {
    const int level = simd_level();
    const int64_t size = chunk_rows(left.num_rows), num_chunks = blocks_of(left.num_rows, size);
    const int64_t num_sums = left.num_columns * right.num_columns;
    const int64_t num_panels = blocks_of(right.num_columns, PANEL_COLUMNS[level]);
    /* If chunks are fewer than threads, several threads share a chunk, by columns. */
    const int64_t num_tasks = least(blocks_of(TASKS_A_THREAD * omp_get_max_threads(), num_chunks), num_panels);
    float *of_threads = aligned(memory);
    float *partial = of_threads + omp_get_max_threads() * gradient_thread_floats(left.num_columns);
#pragma omp parallel
    {
        float *mine = of_threads + omp_get_thread_num() * gradient_thread_floats(left.num_columns);
        float *panel = mine + GRADIENT_DEPTH * whole_tiles(left.num_columns);
        const gradient_task task = {left.num_columns, right.num_columns, mine, panel,
                                    panel + GRADIENT_DEPTH * MAX_PANEL};
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t c = 0; c < num_chunks; c++)
            for (int64_t i = 0; i < num_tasks; i++)
                SUM_CHUNK[level](&left, &right, &task, c * size, least(size, left.num_rows - c * size),
                                 num_panels * i / num_tasks, num_panels * (i + 1) / num_tasks, partial + c * num_sums);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < num_sums; i++) {
            float sum = 0.0f;
            for (int64_t c = 0; c < num_chunks; c++) sum += partial[c * num_sums + i];
            out[i] = sum;
        }
    }
}
