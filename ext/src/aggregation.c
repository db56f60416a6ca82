#include "aggregation.h"

#include <string.h>

#define BLOCK 128          /* columns summed at once: eight AVX-512 registers */
#define PREFETCH_ROWS 8    /* neighbours fetched ahead */
#define ROWS_A_TASK 64     /* rows a thread takes at once; power-law rows balance by being taken on demand */

#define BODY "aggregation_body.h"
#include "levels.h"

typedef void (*aggregate_function)(const sparse_rows *, int64_t, const float *, int64_t, float *);
static const aggregate_function AGGREGATE[] = ALL_LEVELS(aggregate_one);

void aggregate_rows(sparse_rows a, const float *h, int64_t dim, float *out) {
    const aggregate_function aggregate = AGGREGATE[simd_level()];
#pragma omp parallel for schedule(dynamic, ROWS_A_TASK)
    for (int64_t v = 0; v < a.num_rows; v++) aggregate(&a, v, h, dim, out);
}
