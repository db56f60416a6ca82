/* Products of matrices of b-bit codes that are held as planes of bits; bit_products.cuh has their forms, product_end.cuh
 * what becomes of the sums.
 * Threads: a warp has 8 or 16 rows times 32 columns; the four warps of a block have other rows, and the same columns,
 * of which all planes of a few steps of 128 bits lie in shared memory. So a word of the left matrix is read once by
 * every 32 columns and one of the right matrix once a block, whatever the bit-widths.
 * Determinism: integers, one thread an element. */
#include "bit_products.cuh"

template <typename Form>
DEVICE void multiply_lines(const Lines &left, const Lines &right, int64_t num_column_groups,
                           const ProductEnd &end) {
    SHARED_ARRAY(uint32_t, columns, CHUNK_WORDS);
    SHARED_ARRAY(int32_t, sums, WARPS * MOST_ROWS * END_COLUMNS);
    const int32_t own = (int32_t)threadIdx.x / WARP_SIZE * Form::ROWS; /* first row of the warp in the block */
    const int64_t first_column = blockIdx.x % num_column_groups * END_COLUMNS;
    const int64_t first_row = blockIdx.x / num_column_groups * WARPS * Form::ROWS + own;
    Form form = {};
    add_products(form, left, left.num_planes, first_row < left.num_lines, first_row, right, first_column, false,
                 columns);
    form.store(sums, own);
    __syncwarp();
    for (int32_t r = 0; r < Form::ROWS; r++)
        end_row(end, first_row + r, first_column + lane_number(), sums[sum_place(own + r, lane_number())]);
}

#define PRODUCT(name, Form) \
    extern "C" __global__ void name( \
        const uint32_t *left, int64_t num_left, int32_t left_width, const uint32_t *right, int64_t num_right, \
        int32_t right_width, int64_t num_steps, int64_t num_column_groups, int64_t num_rows, int64_t num_columns, \
        int32_t *sums, float *values, uint32_t *planes, const float *row_step, const float *row_zero, \
        const float *row_sum, const float *column_step, const float *column_zero, const float *column_sum, \
        float length, const float *gain, const float *bias, int32_t is_by_row, int32_t has_relu, float low, \
        float step, float offset, int32_t bit_width, int64_t num_padded, int64_t line_words) { \
        multiply_lines<Form>({left, num_left, num_steps, left_width}, {right, num_right, num_steps, right_width}, \
                             num_column_groups, ProductEnd PRODUCT_END); \
    }
PRODUCT(multiply_popcount, PopcountForm)
PRODUCT(multiply_mma8, Mma8Form)
PRODUCT(multiply_mma16, Mma16Form)
