#include "column_sums.h"

#define BLOCK_ROWS 512

#define BODY "column_sums_body.h"
#include "levels.h"

typedef void (*block_function)(const void *, int64_t, int64_t, int, float *);
typedef void (*magnitude_function)(const float *, int64_t, int64_t, double *);
static const block_function SUM_BLOCK[] = ALL_LEVELS(sum_block);
static const magnitude_function MAGNITUDE_BLOCK[] = ALL_LEVELS(magnitude_block);

int64_t num_partial_sums(int64_t num_rows) { return (num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }

static int64_t rows_of_block(int64_t b, int64_t num_rows) {
    return num_rows - b * BLOCK_ROWS < BLOCK_ROWS ? num_rows - b * BLOCK_ROWS : BLOCK_ROWS;
}

void column_sums(const void *rows, int64_t num_rows, int64_t dim, int storage, float *partial, float *out) {
    const block_function sum_block = SUM_BLOCK[simd_level()];
    const int64_t num_blocks = num_partial_sums(num_rows), row_bytes = dim * storage_bytes(storage);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < num_blocks; b++)
        sum_block((const char *)rows + b * BLOCK_ROWS * row_bytes, rows_of_block(b, num_rows), dim, storage,
                  partial + b * dim);
    memset(out, 0, (size_t)dim * sizeof(float));
    for (int64_t b = 0; b < num_blocks; b++)
        for (int64_t j = 0; j < dim; j++) out[j] += partial[b * dim + j];
}

void column_magnitudes(const float *rows, int64_t num_rows, int64_t dim, double *partial, double *out) {
    const magnitude_function sum_block = MAGNITUDE_BLOCK[simd_level()];
    const int64_t num_blocks = num_partial_sums(num_rows);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < num_blocks; b++)
        sum_block(rows + b * BLOCK_ROWS * dim, rows_of_block(b, num_rows), dim, partial + b * dim);
    memset(out, 0, (size_t)dim * sizeof(double));
    for (int64_t b = 0; b < num_blocks; b++)
        for (int64_t j = 0; j < dim; j++) out[j] += partial[b * dim + j];
}
