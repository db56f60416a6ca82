/* Kernel body, compiled once a SIMD level by ceilings.c. */
#include "vector.h"

INLINE float LEVEL(total)(const vector_f32 *sums) {
    float sum = 0;
    for (int i = 0; i < GATHER_SUMS; i++)
        for (int lane = 0; lane < LANES; lane++) sum += sums[i][lane];
    return sum;
}

static float LEVEL(read_piece)(const float *values, int64_t num_values) {
    vector_f32 sums[GATHER_SUMS];
    for (int i = 0; i < GATHER_SUMS; i++) sums[i] = (vector_f32){0};
    int64_t j = 0;
    for (; j + GATHER_SUMS * LANES <= num_values; j += GATHER_SUMS * LANES)
        for (int i = 0; i < GATHER_SUMS; i++) sums[i] += LEVEL(load_f32)(values + j + i * LANES);
    float sum = LEVEL(total)(sums);
    for (; j < num_values; j++) sum += values[j];
    return sum;
}

INLINE void LEVEL(gather_row)(vector_f32 *sums, const char *row, int64_t dim, int storage) {
    int64_t j = 0;
    for (; j + GATHER_SUMS * LANES <= dim; j += GATHER_SUMS * LANES)
        for (int i = 0; i < GATHER_SUMS; i++) sums[i] += LEVEL(load)(row, j + i * LANES, storage);
    for (int i = 0; i < GATHER_SUMS && j < dim; i++, j += LANES) sums[i] += LEVEL(load_columns)(row, j, dim, storage);
}

INLINE float LEVEL(gather_stored)(const char *table, int64_t dim, int storage, const int32_t *indices, int64_t first,
                                  int64_t end, int64_t num_indices, int64_t ahead) {
    const int64_t row_bytes = dim * (storage == STORAGE_F32 ? 4 : 2);
    vector_f32 sums[GATHER_SUMS];
    for (int i = 0; i < GATHER_SUMS; i++) sums[i] = (vector_f32){0};
    for (int64_t e = first; e < end; e++) {
        const char *next = table + indices[e + ahead < num_indices ? e + ahead : e] * row_bytes;
        for (int64_t b = 0; b < row_bytes; b += CACHE_LINE) __builtin_prefetch(next + b);
        __builtin_prefetch(next + row_bytes - 1); /* rows need not begin on a line */
        LEVEL(gather_row)(sums, table + indices[e] * row_bytes, dim, storage);
    }
    return LEVEL(total)(sums);
}

static float LEVEL(gather_chunk)(const char *table, int64_t dim, int storage, const int32_t *indices, int64_t first,
                                 int64_t end, int64_t num_indices, int64_t ahead) {
    switch (storage) {
    case STORAGE_F32:
        return LEVEL(gather_stored)(table, dim, STORAGE_F32, indices, first, end, num_indices, ahead);
    case STORAGE_BF16:
        return LEVEL(gather_stored)(table, dim, STORAGE_BF16, indices, first, end, num_indices, ahead);
    default:
        return LEVEL(gather_stored)(table, dim, STORAGE_F16, indices, first, end, num_indices, ahead);
    }
}
