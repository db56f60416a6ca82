#include "pointwise.h"

#define CHUNK (PHILOX_DRAWS * PHILOX_LANES)

#define BODY "pointwise_body.h"
#include "levels.h"

typedef void (*dropout_function)(const float *, int64_t, int64_t, counter_key, uint32_t, float, float *);
static const dropout_function DROPOUT[] = ALL_LEVELS(dropout_one);

void dropout_rows(const float *rows, const int64_t *node_id, int64_t num_rows, int64_t dim, counter_key key,
                  uint32_t threshold, float scale, float *out) {
    const dropout_function dropout = DROPOUT[simd_level()];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < num_rows; i++)
        dropout(rows + i * dim, dim, node_id[i], key, threshold, scale, out + i * dim);
}
