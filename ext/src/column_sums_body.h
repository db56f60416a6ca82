/* Kernel body, compiled once per SIMD level by column_sums.c. */
#include "vector.h"

INLINE void LEVEL(sum_rows)(const void *rows, int64_t num_rows, int64_t dim, int storage, float *out) {
    memset(out, 0, (size_t)dim * sizeof(float));
    for (int64_t i = 0; i < num_rows; i++) {
        const char *row = (const char *)rows + i * dim * (storage == STORAGE_F32 ? 4 : 2);
        for (int64_t j = 0; j < dim; j += LANES) {
            const vector_f32 sum =
                LEVEL(load_columns)(out, j, dim, STORAGE_F32) + LEVEL(load_columns)(row, j, dim, storage);
            LEVEL(store_columns)(out, j, dim, STORAGE_F32, sum);
        }
    }
}

static void LEVEL(sum_block)(const void *rows, int64_t num_rows, int64_t dim, int storage, float *out) {
    if (storage == STORAGE_F32)
        LEVEL(sum_rows)(rows, num_rows, dim, STORAGE_F32, out);
    else if (storage == STORAGE_BF16)
        LEVEL(sum_rows)(rows, num_rows, dim, STORAGE_BF16, out);
    else
        LEVEL(sum_rows)(rows, num_rows, dim, STORAGE_F16, out);
}

static void LEVEL(magnitude_block)(const float *restrict rows, int64_t num_rows, int64_t dim, double *restrict out) {
    memset(out, 0, (size_t)dim * sizeof(double));
    for (int64_t i = 0; i < num_rows; i++)
        for (int64_t j = 0; j < dim; j++) out[j] += (double)__builtin_fabsf(rows[i * dim + j]);
}
