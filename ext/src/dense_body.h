/* Kernel body, compiled once per SIMD level by dense.c. */
#include "vector.h"

/* Sums that stay in registers: ROWS rows of two vectors. */
#undef ROWS
#undef PANEL
#if LEVEL_LANES == 16
#define ROWS 12
#else
#define ROWS 6
#endif
#define PANEL (2 * LANES)

enum { LEVEL(PANEL_OF) = PANEL };

/* tile += ROWS rows times the first num_vectors vectors of a panel, over `depth` terms. Term t of row r is
 * a[r * row_stride + t * term_stride]; the stride of rows and the number of vectors are constants. */
INLINE void LEVEL(add_vectors)(vector_f32 (*restrict tile)[2], const float *restrict a, int64_t row_stride,
                               int64_t term_stride, const float *restrict panel, int64_t depth, int num_vectors) {
    vector_f32 sum[ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) sum[r][0] = tile[r][0], sum[r][1] = tile[r][1];
    for (int64_t t = 0; t < depth; t++) {
        const vector_f32 low = LEVEL(load_f32)(panel), high = LEVEL(load_f32)(panel + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            const vector_f32 term = LEVEL(repeat)(a[r * row_stride]);
            sum[r][0] = LEVEL(multiply_add)(term, low, sum[r][0]);
            if (num_vectors == 2) sum[r][1] = LEVEL(multiply_add)(term, high, sum[r][1]);
        }
        a += term_stride;
        panel += PANEL;
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) tile[r][0] = sum[r][0], tile[r][1] = sum[r][1];
}

/* As add_vectors, with as many vectors as hold num_columns. */
INLINE void LEVEL(add_terms)(vector_f32 (*restrict tile)[2], const float *restrict a, int64_t row_stride,
                             int64_t term_stride, const float *restrict panel, int64_t depth, int64_t num_columns) {
    if (num_columns > LANES)
        LEVEL(add_vectors)(tile, a, row_stride, term_stride, panel, depth, 2);
    else
        LEVEL(add_vectors)(tile, a, row_stride, term_stride, panel, depth, 1);
}

/* Columns [first, first + count) of a row, as float32. */
INLINE void LEVEL(widen_columns)(const char *row, int64_t first, int64_t count, int storage, float *out) {
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES) {
        const vector_f32 v = LEVEL(load)(row, first + j, storage);
        memcpy(out + j, &v, sizeof v);
    }
    if (j < count) {
        const vector_f32 v = LEVEL(load_first)(row, first + j, count - j, storage);
        float rest[LANES];
        memcpy(rest, &v, sizeof v);
        memcpy(out + j, rest, (size_t)(count - j) * sizeof(float));
    }
}

/* Panel p of the right side: PANEL columns of each of its rows, zeros past the last column. */
INLINE void LEVEL(pack_panel_of)(const dense_matrix *right, int is_transposed, int64_t p, float *panel, int storage) {
    const int64_t size = storage_bytes(storage), row_bytes = right->num_columns * size;
    const char *data = right->data;
    if (!is_transposed) {
        const int64_t first = p * PANEL, count = least(PANEL, right->num_columns - first);
        for (int64_t t = 0; t < right->num_rows; t++) {
            LEVEL(widen_columns)(data + t * row_bytes, first, count, storage, panel + t * PANEL);
            for (int64_t j = count; j < PANEL; j++) panel[t * PANEL + j] = 0.0f;
        }
        return;
    }
    const int64_t depth = right->num_columns, count = least(PANEL, right->num_rows - p * PANEL);
    memset(panel, 0, (size_t)(depth * PANEL) * sizeof(float));
    for (int64_t j = 0; j < count; j++)
        for (int64_t t = 0; t < depth; t += LANES) {
            float terms[LANES];
            const int64_t some = least(LANES, depth - t);
            LEVEL(widen_columns)(data + (p * PANEL + j) * row_bytes, t, some, storage, terms);
            for (int64_t i = 0; i < some; i++) panel[(t + i) * PANEL + j] = terms[i];
        }
}

static void LEVEL(pack_panel)(const dense_matrix *right, int is_transposed, int64_t p, float *panel) {
    if (right->storage == STORAGE_F32)
        LEVEL(pack_panel_of)(right, is_transposed, p, panel, STORAGE_F32);
    else if (right->storage == STORAGE_BF16)
        LEVEL(pack_panel_of)(right, is_transposed, p, panel, STORAGE_BF16);
    else
        LEVEL(pack_panel_of)(right, is_transposed, p, panel, STORAGE_F16);
}

/* Write the rows of a tile to `out`, in the storage of the product. */
INLINE void LEVEL(store_tile)(vector_f32 (*tile)[2], int64_t num_rows, int64_t first, int64_t num_columns, int is_added,
                              char *out, int storage) {
    const int64_t row_bytes = num_columns * storage_bytes(storage);
    if (num_rows == ROWS && first + PANEL <= num_columns) {
        out += first * storage_bytes(storage);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                vector_f32 value = tile[r][half];
                if (is_added) value += LEVEL(load)(out + r * row_bytes, half * LANES, storage);
                LEVEL(store)(out + r * row_bytes, half * LANES, storage, value);
            }
        return;
    }
    for (int64_t r = 0; r < num_rows; r++)
        for (int half = 0; half < 2; half++) {
            const int64_t j = first + half * LANES;
            vector_f32 value = tile[r][half];
            if (j >= num_columns) break;
            if (is_added) value += LEVEL(load_columns)(out + r * row_bytes, j, num_columns, storage);
            LEVEL(store_columns)(out + r * row_bytes, j, num_columns, storage, value);
        }
}

/* One side of a block of rows; `is_first` and `is_last` say whether its sums begin and end here. */
INLINE void LEVEL(multiply_side)(const product_task *task, const product_side *side, int is_first_side,
                                 int is_last_side, int64_t first, int64_t num_rows, int is_added, char *out,
                                 int storage) {
    const int64_t size = storage_bytes(storage), num_tiles = (num_rows + ROWS - 1) / ROWS;
    const int64_t stride = task->num_panels * PANEL, row_bytes = side->depth * size;
    const dense_matrix *left = side->left;
    const char *rows = (const char *)left->data + first * row_bytes;
    const int64_t next_first = least(first + task->rows_ahead, left->num_rows);
    const char *next = (const char *)left->data + next_first * row_bytes;
    const char *next_end = next + least(BLOCK_ROWS, left->num_rows - next_first) * row_bytes;
    const int64_t num_shares = blocks_of(side->depth, BLOCK_DEPTH) * task->num_panels * num_tiles;
    int64_t share = 0;
    for (int64_t begin = 0; begin == 0 || begin < side->depth; begin += BLOCK_DEPTH) {
        const int64_t depth = least(BLOCK_DEPTH, side->depth - begin);
        for (int64_t r = 0; r < num_rows; r++)
            LEVEL(widen_columns)(rows + r * row_bytes, begin, depth, storage, task->block + r * BLOCK_DEPTH);
        memset(task->block + num_rows * BLOCK_DEPTH, 0,
               (size_t)((num_tiles * ROWS - num_rows) * BLOCK_DEPTH) * sizeof(float));
        const int is_first = is_first_side && begin == 0, is_last = is_last_side && begin + BLOCK_DEPTH >= side->depth;
        for (int64_t p = 0; p < task->num_panels; p++) {
            const float *panel = side->panels + (p * side->depth + begin) * PANEL;
            const float *first_sums = task->first + p * PANEL;
            for (int64_t i = 0; i < num_tiles; i++) {
                vector_f32 tile[ROWS][2];
                fetch_share(next, next_end, share++, num_shares);
                float *kept = task->sums + i * ROWS * stride + p * PANEL;
                const float *from = is_first ? first_sums : kept;
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
                    for (int half = 0; half < 2; half++)
                        tile[r][half] = LEVEL(load_f32)(from + (is_first ? 0 : r * stride) + half * LANES);
                LEVEL(add_terms)(tile, task->block + i * ROWS * BLOCK_DEPTH, BLOCK_DEPTH, 1, panel, depth,
                                 task->num_columns - p * PANEL);
                if (is_last)
                    LEVEL(store_tile)(tile, least(ROWS, num_rows - i * ROWS), p * PANEL, task->num_columns, is_added,
                                      out + (first + i * ROWS) * task->num_columns * size, storage);
                else
#pragma GCC unroll 12
                    for (int r = 0; r < ROWS; r++) memcpy(kept + r * stride, tile[r], sizeof tile[r]);
            }
        }
    }
}

static void LEVEL(multiply_block)(const product_task *task, int64_t first, int64_t num_rows, int is_added, char *out) {
    for (int s = 0; s < task->num_sides; s++) {
        const product_side *side = &task->sides[s];
        const int is_first = s == 0, is_last = s + 1 == task->num_sides;
        if (side->left->storage == STORAGE_F32)
            LEVEL(multiply_side)(task, side, is_first, is_last, first, num_rows, is_added, out, STORAGE_F32);
        else if (side->left->storage == STORAGE_BF16)
            LEVEL(multiply_side)(task, side, is_first, is_last, first, num_rows, is_added, out, STORAGE_BF16);
        else
            LEVEL(multiply_side)(task, side, is_first, is_last, first, num_rows, is_added, out, STORAGE_F16);
    }
}

/* The panels [first_panel, last_panel) of left.T @ right over the rows of one chunk, to `sums`. */
INLINE void LEVEL(sum_chunk_of)(const dense_matrix *left, const dense_matrix *right, const gradient_task *task,
                                int64_t first, int64_t num_rows, int64_t first_panel, int64_t last_panel, float *sums,
                                int storage) {
    const int64_t size = storage_bytes(storage);
    const int64_t left_bytes = task->left_columns * size, right_bytes = task->right_columns * size;
    memset(task->row + task->left_columns, 0, ROWS * sizeof(float));      /* past the last column of the last tile */
    for (int64_t begin = 0; begin < num_rows; begin += GRADIENT_DEPTH) {
        const int64_t depth = least(GRADIENT_DEPTH, num_rows - begin);
        const dense_matrix block = {(const char *)right->data + (first + begin) * right_bytes, depth,
                                    task->right_columns, storage};
        for (int64_t t = 0; t < depth; t++) {
            LEVEL(widen_columns)((const char *)left->data + (first + begin + t) * left_bytes, 0, task->left_columns,
                                 storage, task->row);
            for (int64_t i = 0; i < blocks_of(task->left_columns, ROWS); i++)
                memcpy(task->left + (i * GRADIENT_DEPTH + t) * ROWS, task->row + i * ROWS, ROWS * sizeof(float));
        }
        const int64_t next = first + begin + depth, next_depth = least(GRADIENT_DEPTH, left->num_rows - next);
        const int64_t num_shares = (last_panel - first_panel) * blocks_of(task->left_columns, ROWS);
        const char *next_left = (const char *)left->data + next * left_bytes;
        const char *next_right = (const char *)right->data + next * right_bytes;
        int64_t share = 0;
        for (int64_t p = first_panel; p < last_panel; p++) {
            LEVEL(pack_panel_of)(&block, 0, p, task->panel, storage);
            for (int64_t i = 0; i < task->left_columns; i += ROWS, share++) {
                vector_f32 tile[ROWS][2];
                fetch_share(next_left, next_left + next_depth * left_bytes, share, num_shares);
                fetch_share(next_right, next_right + next_depth * right_bytes, share, num_shares);
                char *out = (char *)(sums + i * task->right_columns);
                const int64_t num_sums = least(ROWS, task->left_columns - i);
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++) tile[r][0] = tile[r][1] = (vector_f32){0};
                LEVEL(add_terms)(tile, task->left + i * GRADIENT_DEPTH, 1, ROWS, task->panel, depth,
                                 task->right_columns - p * PANEL);
                LEVEL(store_tile)(tile, num_sums, p * PANEL, task->right_columns, begin > 0, out, STORAGE_F32);
            }
        }
    }
}

static void LEVEL(sum_chunk)(const dense_matrix *left, const dense_matrix *right, const gradient_task *task,
                             int64_t first, int64_t num_rows, int64_t first_panel, int64_t last_panel, float *sums) {
    if (left->storage == STORAGE_F32)
        LEVEL(sum_chunk_of)(left, right, task, first, num_rows, first_panel, last_panel, sums, STORAGE_F32);
    else if (left->storage == STORAGE_BF16)
        LEVEL(sum_chunk_of)(left, right, task, first, num_rows, first_panel, last_panel, sums, STORAGE_BF16);
    else
        LEVEL(sum_chunk_of)(left, right, task, first, num_rows, first_panel, last_panel, sums, STORAGE_F16);
}
