/* Products of rows in any storage with a weight matrix, and gradients of weights: widened block by block, summed in
 * float32 with one order of the additions for any number of rows, threads and, where a level has fused multiplication
 * and addition, any level. */
#ifndef HPCGNN_DENSE_H
#define HPCGNN_DENSE_H
#include <stdint.h>

/* A matrix of num_rows by num_columns in one storage, row after row. */
typedef struct {
    const void *data;
    int64_t num_rows, num_columns;
    int storage;
} dense_matrix;

/* Bytes of work memory that the caller provides, for all threads; `depth` is the sum of the products' depths. */
int64_t dense_product_bytes(int64_t depth, int num_sides, int64_t num_columns);
int64_t dense_gradient_bytes(int64_t num_rows, int64_t left_columns, int64_t right_columns);

/* out = left @ right, or added to out, which has left's storage. right lies as (depth, num_columns), or, where
 * is_transposed, as (num_columns, depth). */
void dense_product(dense_matrix left, dense_matrix right, int is_transposed, int is_added, void *out, void *memory);

/* out = bias + left[0] @ right[0].T + left[1] @ right[1].T, rounded once, of one side or two, with one bias per column;
 * all matrices have one storage. out may be left[0] or left[1]: all of a row is read before it is written. */
void dense_combination(const dense_matrix *left, const dense_matrix *right, int num_sides, const float *bias, void *out,
                       void *memory);

/* out = left.T @ right in float32, summed over the rows of both. */
void dense_gradient(dense_matrix left, dense_matrix right, float *out, void *memory);
#endif
