/* Kernel body, compiled once a SIMD level by aggregation.c. */
#include "vector.h"


INLINE const char *LEVEL(row_of)(const dense_rows *h, int64_t u, int64_t row_bytes) {
    return u < h->split ? (const char *)h->near + u * row_bytes : (const char *)h->far + (u - h->split) * row_bytes;
}

INLINE void LEVEL(prefetch)(const char *columns, int num_bytes) {
    for (int b = 0; b < num_bytes; b += CACHE_LINE) __builtin_prefetch(columns + b);
    __builtin_prefetch(columns + num_bytes - 1); /* rows need not begin on a line */
}

/* Whole vectors are read where they may pass the row's end, but not the table's: the highest row for which that holds.
 * The columns behind the end are never stored. */
INLINE int64_t LEVEL(last_whole)(int64_t num_rows, int64_t dim, int64_t first, int64_t num_read) {
    const int64_t elements = num_rows * dim - first - num_read;
    return elements < 0 ? -1 : elements / dim;
}

INLINE void LEVEL(add_row)(vector_f32 *sum, int num_vectors, const char *row, column_block block, int storage,
                           int is_whole, int is_weighted, float weight) {
    const char *first = row + block.first * (storage == STORAGE_F32 ? 4 : 2);
    for (int i = 0; i < num_vectors; i++) {
        vector_f32 x;
        if (!is_whole)
            x = LEVEL(load_columns)(first, i * LANES, block.num_columns, storage); /* at the end of a table */
        else
            x = LEVEL(load)(first, i * LANES, storage);
        sum[i] += is_weighted ? weight * x : x;
    }
}

/* One row, one block of at most num_vectors * LANES columns. All but the first four arguments are constants. */
INLINE void LEVEL(sum_block)(const sparse_rows *a, const dense_rows *h, int64_t v, column_block block, char *out_row,
                             int accumulate, int num_vectors, int storage, int weighting) {
    const int64_t size = storage == STORAGE_F32 ? 4 : 2, row_bytes = h->dim * size;
    const int64_t end = a->end[v], ahead = row_bytes > 512 ? PREFETCH_ENTRIES / 2 : PREFETCH_ENTRIES;
    const int64_t whole_near = LEVEL(last_whole)(h->num_near, h->dim, block.first, num_vectors * LANES);
    const int64_t whole_far = LEVEL(last_whole)(h->num_far, h->dim, block.first, num_vectors * LANES) + h->split;
    vector_f32 sum[MAX_VECTORS];
    for (int i = 0; i < num_vectors; i++) sum[i] = (vector_f32){0};
    if (v < a->num_self)
        LEVEL(add_row)(sum, num_vectors, LEVEL(row_of)(h, v, row_bytes), block, storage, 0,
                       weighting == BY_COLUMN, weighting == BY_COLUMN ? a->column_scale[v] : 1.0f);
    for (int64_t e = a->begin[v]; e < end; e++) {
        if (e + ahead < a->num_entries)
            LEVEL(prefetch)(LEVEL(row_of)(h, a->indices[e + ahead], row_bytes) + block.first * size,
                            num_vectors * LANES * (int)size);
        const int64_t u = a->indices[e];
        float weight = 1.0f;
        if (weighting == BY_COLUMN) weight = a->column_scale[u];
        if (weighting == BY_ENTRY)
            weight = a->entry_scale[(a->entry_index ? a->entry_index[e] : e) * a->num_heads + block.head];
        const char *row = LEVEL(row_of)(h, u, row_bytes);
        const int is_whole = u < h->split ? u <= whole_near : u <= whole_far;
        if (__builtin_expect(is_whole, 1))
            LEVEL(add_row)(sum, num_vectors, row, block, storage, 1, weighting != UNWEIGHTED, weight);
        else
            LEVEL(add_row)(sum, num_vectors, row, block, storage, 0, weighting != UNWEIGHTED, weight);
    }
    const float row_scale = a->row_scale ? a->row_scale[v] : 1.0f;
    for (int i = 0; i < num_vectors; i++) {
        const int64_t j = block.first + i * LANES, stop = block.first + block.num_columns;
        vector_f32 value = row_scale * sum[i];
        if (accumulate) value += LEVEL(load_columns)(out_row, j, stop, storage);
        LEVEL(store_columns)(out_row, j, stop, storage, value);
    }
}

#define SUM_BLOCK_OF(n) \
    case n: LEVEL(sum_block)(a, h, v, block, out_row, accumulate, n, storage, weighting); break

/* Vectors of the next block of `needed` ones: the widest of 8, 6, 4, 3, 2, 1. */
INLINE int64_t LEVEL(block_vectors)(int64_t needed) {
    if (needed >= MAX_VECTORS) return MAX_VECTORS;
    return needed >= 6 ? 6 : needed == 5 ? 4 : needed;
}

/* Splits each head's columns into blocks. */
INLINE void LEVEL(sum_row)(const sparse_rows *a, const dense_rows *h, int64_t v, int accumulate, void *out,
                           int storage, int weighting) {
    const int64_t head_dim = h->dim / a->num_heads;
    char *out_row = (char *)out + v * h->dim * (storage == STORAGE_F32 ? 4 : 2);
    for (int64_t head = 0; head < a->num_heads; head++)
        for (int64_t done = 0; done < head_dim;) {
            const int64_t left = head_dim - done, width = LEVEL(block_vectors)((left + LANES - 1) / LANES);
            const int64_t num_columns = left < width * LANES ? left : width * LANES;
            const column_block block = {head * head_dim + done, num_columns, head};
            switch (width) {
                SUM_BLOCK_OF(1);
                SUM_BLOCK_OF(2);
                SUM_BLOCK_OF(3);
                SUM_BLOCK_OF(4);
                SUM_BLOCK_OF(6);
                SUM_BLOCK_OF(8);
            }
            done += num_columns;
        }
}
#undef SUM_BLOCK_OF

#define TASK_OF(storage, weighting) \
    case 3 * storage + weighting: \
        for (int64_t v = a->task[t]; v < a->task[t + 1]; v++) \
            LEVEL(sum_row)(a, h, v, accumulate, out, storage, weighting); \
        break

static void LEVEL(aggregate_task)(const sparse_rows *a, const dense_rows *h, int64_t t, int accumulate, void *out) {
    const int weighting = a->entry_scale ? BY_ENTRY : a->column_scale ? BY_COLUMN : UNWEIGHTED;
    switch (3 * h->storage + weighting) {
        TASK_OF(STORAGE_F32, UNWEIGHTED);
        TASK_OF(STORAGE_F32, BY_COLUMN);
        TASK_OF(STORAGE_F32, BY_ENTRY);
        TASK_OF(STORAGE_BF16, UNWEIGHTED);
        TASK_OF(STORAGE_BF16, BY_COLUMN);
        TASK_OF(STORAGE_BF16, BY_ENTRY);
        TASK_OF(STORAGE_F16, UNWEIGHTED);
        TASK_OF(STORAGE_F16, BY_COLUMN);
        TASK_OF(STORAGE_F16, BY_ENTRY);
    }
}
#undef TASK_OF
