/* Kernel body, compiled once per SIMD level by ceilings.c. */
#include "vector.h"

/* Sum of the first num_lanes lanes. Whole vectors are stored, so that the caller's sums can stay in registers. */
INLINE float LEVEL(total)(const vector_f32 *sums, int64_t num_lanes) {
    float lanes[GATHER_SUMS * LANES], sum = 0;
    for (int i = 0; i < GATHER_SUMS; i++) LEVEL(store)(lanes, i * LANES, STORAGE_F32, sums[i]);
    for (int64_t lane = 0; lane < num_lanes; lane++) sum += lanes[lane];
    return sum;
}

static float LEVEL(read_piece)(const float *values, int64_t num_values) {
    vector_f32 sums[GATHER_SUMS];
    for (int i = 0; i < GATHER_SUMS; i++) sums[i] = (vector_f32){0};
    int64_t j = 0;
    for (; j + GATHER_SUMS * LANES <= num_values; j += GATHER_SUMS * LANES)
        for (int i = 0; i < GATHER_SUMS; i++) sums[i] += LEVEL(load_f32)(values + j + i * LANES);
    float sum = LEVEL(total)(sums, GATHER_SUMS * LANES);
    for (; j < num_values; j++) sum += values[j];
    return sum;
}

/* Columns j .. dim-1 of a row; a call of its own, so that the sums of all other rows stay in registers. */
static __attribute__((noinline)) float LEVEL(gather_end)(const char *row, int64_t j, int64_t dim, int storage) {
    float sum = 0;
    for (; j < dim; j += LANES) {
        vector_f32 columns = {0};
        switch (storage) {
        case STORAGE_F32: columns = LEVEL(load_columns)(row, j, dim, STORAGE_F32); break;
        case STORAGE_BF16: columns = LEVEL(load_columns)(row, j, dim, STORAGE_BF16); break;
        case STORAGE_F16: columns = LEVEL(load_columns)(row, j, dim, STORAGE_F16); break;
        }
        for (int lane = 0; lane < LANES; lane++) sum += columns[lane];
    }
    return sum;
}

/* num_vectors is a constant: the vectors of a row, or 0 if gather_stored does not list that number. */
INLINE float LEVEL(gather_vectors)(const gather *g, int64_t first, int64_t end, int storage, int num_vectors) {
    const int64_t dim = g->dim, row_bytes = dim * (storage == STORAGE_F32 ? 4 : 2);
    const int64_t with_next = g->num_indices - g->ahead; /* entries with a later one `ahead` places on */
    const int32_t *indices = g->indices, *next_indices = g->indices + g->ahead;
    const char *table = g->table;
    const int64_t fetched = num_vectors ? num_vectors * LANES * (storage == STORAGE_F32 ? 4 : 2) : row_bytes;
    const int64_t whole = num_vectors ? 0 : dim - dim % (GATHER_SUMS * LANES); /* columns of the loop below */
    /* Whole vectors may pass a row's end, but not the table's: last_whole is the last row whose vectors don't. */
    const int64_t spare = g->num_rows * dim - num_vectors * LANES, last_whole = spare < 0 ? -1 : spare / dim;
    vector_f32 sums[GATHER_SUMS];
    float rest = 0;
    for (int i = 0; i < GATHER_SUMS; i++) sums[i] = (vector_f32){0};
    for (int64_t e = first; e < end; e++) {
        const char *row = table + indices[e] * row_bytes;
        if (e < with_next) {
            const char *next = table + next_indices[e] * row_bytes;
            for (int64_t b = 0; b < fetched; b += CACHE_LINE) __builtin_prefetch(next + b);
            __builtin_prefetch(next + fetched - 1); /* rows need not begin on a line */
        }
        if (num_vectors && __builtin_expect(indices[e] <= last_whole, 1)) {
            for (int i = 0; i < num_vectors; i++) sums[i % GATHER_SUMS] += LEVEL(load)(row, i * LANES, storage);
            continue;
        }
        if (num_vectors) { /* at the table's end; no call here, which would push the sums out of their registers */
            for (int i = 0; i < num_vectors; i++)
                sums[i % GATHER_SUMS] += LEVEL(load_columns)(row, i * LANES, dim, storage);
            continue;
        }
        for (int64_t j = 0; j < whole; j += GATHER_SUMS * LANES)
            for (int i = 0; i < GATHER_SUMS; i++) sums[i] += LEVEL(load)(row, j + i * LANES, storage);
        if (whole < dim) rest += LEVEL(gather_end)(row, whole, dim, storage);
    }
    const int is_short = num_vectors && num_vectors <= GATHER_SUMS; /* lanes behind a row's end don't count */
    return LEVEL(total)(sums, is_short ? dim : GATHER_SUMS * LANES) + rest;
}

#define GATHER_OF(n) case n: return LEVEL(gather_vectors)(g, first, end, storage, n)

INLINE float LEVEL(gather_stored)(const gather *g, int64_t first, int64_t end, int storage) {
    if (g->dim == 16 * LANES) return LEVEL(gather_vectors)(g, first, end, storage, 16);
    switch ((g->dim + LANES - 1) / LANES) {
        GATHER_OF(1);
        GATHER_OF(2);
        GATHER_OF(3);
        GATHER_OF(4);
        GATHER_OF(6);
        GATHER_OF(8);
    default:
        return LEVEL(gather_vectors)(g, first, end, storage, 0);
    }
}
#undef GATHER_OF

static float LEVEL(gather_chunk)(const gather *g, int64_t first, int64_t end) {
    switch (g->storage) {
    case STORAGE_F32:
        return LEVEL(gather_stored)(g, first, end, STORAGE_F32);
    case STORAGE_BF16:
        return LEVEL(gather_stored)(g, first, end, STORAGE_BF16);
    default:
        return LEVEL(gather_stored)(g, first, end, STORAGE_F16);
    }
}
