#include "column_sums.h"

#define BLOCK_ROWS 512

#define BODY "column_sums_body.h"
#include "levels.h"

typedef void (*block_function)(const void *, int64_t, int64_t, int, float *);
static const block_function SUM_BLOCK[] = ALL_LEVELS(sum_block);

int64_t num_partial_sums(int64_t num_rows) { return (num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }

void column_sums(const void *rows, int64_t num_rows, int64_t dim, int storage, float *partial, float *out) {
    const block_function sum_block = SUM_BLOCK[simd_level()];
    const int64_t num_blocks = num_partial_sums(num_rows), row_bytes = dim * storage_bytes(storage);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < num_blocks; b++) {
        const int64_t first = b * BLOCK_ROWS, count = num_rows - first < BLOCK_ROWS ? num_rows - first : BLOCK_ROWS;
        sum_block((const char *)rows + first * row_bytes, count, dim, storage, partial + b * dim);
    }
    memset(out, 0, (size_t)dim * sizeof(float));
    for (int64_t b = 0; b < num_blocks; b++)
        for (int64_t j = 0; j < dim; j++) out[j] += partial[b * dim + j];
}
