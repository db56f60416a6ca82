/* Kernels that finish rows: the parameters that all of them have, and a block's shared memory. */
#ifndef HPCGNN_INTEGER_ROWS_CUH
#define HPCGNN_INTEGER_ROWS_CUH
#include "integer_finish.cuh"

/* A RowEnd of a kernel's parameters, in its order. */
#define ROW_END \
    {num_rows, dim, cells, degree, count, shift, near, field_bits, field_words, epsilon, row_factor, \
     {row_step, num_row_steps}, column_scale, own, {own_step, num_own_steps}, own_scale, bias, norm_weight, norm_bias, \
     norm_eps, rectifies, values, planes, bit_width, is_signed, line_words, {step, num_steps}, {limit, num_steps}, faults}

/* The block's row that this thread's 16 lanes have, and its parts of shared memory. */
struct BlockRow {
    int32_t number; /* 0 .. BLOCK_ROWS - 1 */
    float *cells;
    uint32_t *words;
};

DEVICE BlockRow block_row(const RowEnd &end) {
    DYNAMIC_SHARED(float, shared);
    const int32_t number = (int32_t)threadIdx.x / ROW_LANES;
    uint32_t *words = reinterpret_cast<uint32_t *>(shared + BLOCK_ROWS * end.cells);
    return {number, shared + number * end.cells, words + number * end.bit_width * end.line_words};
}

/* The cells of one row as sums, before they are values. */
DEVICE int32_t *sums_of(float *cells) { return reinterpret_cast<int32_t *>(cells); }

/* All lanes of a warp: each lane's own columns of sums become values, and the two rows are finished. */
DEVICE void end_sums(const RowEnd &end, int64_t row, const BlockRow &own) {
    if (row >= 0)
        for (int32_t j = lane_number() % ROW_LANES; j < end.dim; j += ROW_LANES)
            own.cells[j] = value_of_sum(end, row, j, sums_of(own.cells)[j]);
    end_rows(end, row, own.cells, own.words);
}
#endif
