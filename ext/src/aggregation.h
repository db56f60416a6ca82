/* Sparse matrix times dense rows. */
#ifndef HPCGNN_AGGREGATION_H
#define HPCGNN_AGGREGATION_H
#include <stdint.h>

/* out[v] = row_scale[v] * sum over u in row v of column_scale[u] * h[u], for v in [0, num_rows).
 * A row v < num_self also adds column_scale[v] * h[v] inside the sum (a self-loop). A null scale is 1.
 * Each row is summed by one thread in the order of its indices, so the result does not depend on the thread count. */
typedef struct {
    int64_t num_rows, num_self;
    const int64_t *indptr;
    const int32_t *indices;
    const float *row_scale, *column_scale;
} sparse_rows;

void aggregate_rows(sparse_rows a, const float *h, int64_t dim, float *out);
#endif
