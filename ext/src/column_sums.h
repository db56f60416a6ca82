/* Sums over the rows of a matrix, in one order whatever the number of threads: blocks of rows, then the blocks. */
#ifndef HPCGNN_COLUMN_SUMS_H
#define HPCGNN_COLUMN_SUMS_H
#include "storage.h"

int64_t num_partial_sums(int64_t num_rows);

/* partial is scratch of num_partial_sums(num_rows) * dim floats. */
void column_sums(const void *rows, int64_t num_rows, int64_t dim, int storage, float *partial, float *out);

/* Sums of |rows[i][j]| in float64, so that they hardly depend on how rows are shared out among ranks. */
void column_magnitudes(const float *rows, int64_t num_rows, int64_t dim, double *partial, double *out);
#endif
