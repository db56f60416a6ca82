/* Products of matrices of b-bit codes that are held as planes of bits; bit_products.cuh has their forms and what a warp
 * does, product_end.cuh what becomes of the sums.
 * Threads: a block of four warps has 4 / num_shares times 8 or 16 rows, and 32 columns. So a word of the left matrix is
 * read once per 32 columns, and a word of the right matrix once per rows of a warp (8 or 16), at bit-widths up to four.
 * Of the warps with the same rows, each finishes every num_shares-th row.
 * Determinism: integers, one thread per element. */
#include "bit_products.cuh"

template <typename Form>
DEVICE void multiply_lines(const Lines &left, const Lines &right, int32_t num_shares, int32_t num_column_groups,
                           const ProductEnd &end) {
    SHARED_ARRAY(int32_t, sums, BLOCK_SUMS);
    const WarpWork work = WarpWork::of<Form>(num_shares);
    const int32_t block = (int32_t)blockIdx.x;
    const int64_t first_column = (int64_t)(block % num_column_groups) * END_COLUMNS;
    const int64_t first_row = (int64_t)(block / num_column_groups) * work.block_rows + work.row;
    Form form = {};
    if (first_row < left.num_lines)
        add_products(form, LaneLines(left, first_row), right, first_column, false, work);
    form.store(sums, work.first_place());
    __syncthreads();
    for (int32_t r = work.share; r < Form::ROWS; r += num_shares)
        end_row(end, first_row + r, first_column + lane_number(), work.whole_sum(sums, work.row + r, lane_number()));
}

#define PRODUCT(name, Form) \
    extern "C" __global__ void name( \
        const uint32_t *left, int64_t num_left, int32_t left_width, const uint32_t *right, int64_t num_right, \
        int32_t right_width, int64_t num_steps, int32_t num_shares, int32_t num_column_groups, int64_t num_rows, \
        int64_t num_columns, int32_t *sums, float *values, uint32_t *planes, const float *row_step, \
        const float *row_zero, const float *row_sum, const float *column_step, const float *column_zero, \
        const float *column_sum, float length, const float *gain, const float *bias, int32_t is_by_row, \
        int32_t has_relu, float low, float step, float offset, int32_t bit_width, int64_t num_padded, \
        int64_t line_words) { \
        multiply_lines<Form>({left, num_left, num_steps, left_width}, {right, num_right, num_steps, right_width}, \
                             num_shares, num_column_groups, ProductEnd PRODUCT_END); \
    }
PRODUCT(multiply_popcount, PopcountForm)
PRODUCT(multiply_mma8, Mma8Form)
PRODUCT(multiply_mma16, Mma16Form)
