/* Sums over the rows of a matrix, in float32 and in one order.
 *
 * Maths: out[b, j] = sum of rows[i, j] over the rows i of block b; a second launch adds the blocks.
 * Threads: a thread block has columns_a_block neighboring columns, and as many rows at a time as its threads hold, so
 * that narrow rows too are read in whole lines of memory.
 * Determinism: a thread adds rows in ascending order, the first thread of a column adds the threads' sums in the order
 * of threads, and the geometry depends only on the numbers of rows and columns. No atomics. */
#include "device.cuh"

#define MAX_THREADS 256

template <typename T>
DEVICE void sum_columns(const T *rows, int64_t num_rows, int64_t dim, int64_t rows_a_block, int32_t columns_a_block,
                        float *out) {
    SHARED_ARRAY(float, part, MAX_THREADS);
    const int32_t thread = (int32_t)threadIdx.x, rows_together = (int32_t)blockDim.x / columns_a_block;
    const int32_t offset = thread / columns_a_block;
    const int64_t column = (int64_t)blockIdx.x * columns_a_block + thread % columns_a_block;
    const int64_t first = (int64_t)blockIdx.y * rows_a_block;
    const int64_t stop = first + rows_a_block < num_rows ? first + rows_a_block : num_rows;
    const bool has_column = column < dim && offset < rows_together; /* threads may be left over */
    float sum = 0.0f;
    if (has_column)
        for (int64_t i = first + offset; i < stop; i += rows_together) sum += load_f32(rows, i * dim + column);
    part[thread] = sum;
    __syncthreads();
    if (!has_column || offset > 0) return;
    for (int32_t r = 1; r < rows_together; r++) sum += part[thread + r * columns_a_block];
    out[blockIdx.y * dim + column] = sum;
}

#define SUM_COLUMNS(T, suffix) \
    extern "C" __global__ void sum_columns_##suffix(const T *rows, int64_t num_rows, int64_t dim, \
                                                    int64_t rows_a_block, int32_t columns_a_block, float *out) { \
        sum_columns<T>(rows, num_rows, dim, rows_a_block, columns_a_block, out); \
    }
FOR_EACH_STORAGE(SUM_COLUMNS)
