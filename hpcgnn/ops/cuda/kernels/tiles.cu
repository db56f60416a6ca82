/* Products of a 0/1 matrix of 8 x 128 tiles with lines of codes, and counts of its rows' entries; tile_products.cuh has
 * the forms, product_end.cuh finishes the sums. If asked for, tiles of zeros are jumped, and a loaded tile is
 * multiplied by all planes before the next tile (QGTC, Sections 4.3 and 4.4).
 * Threads: a warp has a row of tiles times 32 columns.
 * Determinism: integers, one thread per element; a row of tiles is counted by one warp. */
#include "tile_products.cuh"

template <typename Form>
DEVICE void multiply_tiles(const int64_t *begin, const int32_t *column, const uint32_t *words, int64_t num_tile_rows,
                           const Lines &right, int64_t num_column_groups, bool is_jumping, bool is_reusing,
                           int32_t *num_multiplied, const ProductEnd &end) {
    SHARED_ARRAY(int32_t, sums, WARPS * TILE_ROWS * SUM_STRIDE);
    const int32_t warp = (int32_t)threadIdx.x / WARP_SIZE, own_sums = warp * TILE_ROWS * SUM_STRIDE;
    /* Warps with the same tiles follow each other. */
    const int64_t number = (int64_t)blockIdx.x * WARPS + warp, tile_row = number / num_column_groups;
    const int64_t first_column = number % num_column_groups * END_COLUMNS;
    if (tile_row >= num_tile_rows) return;
    const TileRow row = {words, column, begin[tile_row], begin[tile_row + 1], is_jumping};
    Form form = {};
    const int32_t count = is_reusing ? add_with_reuse(row, right, first_column, form)
                                     : add_by_plane(row, right, first_column, form);
    if (first_column == 0 && lane_number() == 0) num_multiplied[tile_row] = count;
    form.store(sums, own_sums);
    __syncwarp();
    for (int32_t r = 0; r < TILE_ROWS; r++)
        end_row(end, tile_row * TILE_ROWS + r, first_column + lane_number(),
                sums[own_sums + r * SUM_STRIDE + lane_number()]);
}

#define PRODUCT(name, Form) \
    extern "C" __global__ void name( \
        const int64_t *begin, const int32_t *column, const uint32_t *words, int64_t num_tile_rows, \
        const uint32_t *right, int64_t num_right, int32_t right_width, int64_t num_steps, int64_t num_column_groups, \
        int32_t is_jumping, int32_t is_reusing, int32_t *num_multiplied, int64_t num_rows, int64_t num_columns, \
        int32_t *sums, float *values, uint32_t *planes, const float *row_step, const float *row_zero, \
        const float *row_sum, const float *column_step, const float *column_zero, const float *column_sum, \
        float length, const float *gain, const float *bias, int32_t is_by_row, int32_t has_relu, float low, \
        float step, float offset, int32_t bit_width, int64_t num_padded, int64_t line_words) { \
        multiply_tiles<Form>(begin, column, words, num_tile_rows, {right, num_right, num_steps, right_width}, \
                             num_column_groups, is_jumping, is_reusing, num_multiplied, ProductEnd PRODUCT_END); \
    }
PRODUCT(multiply_popcount, PopcountForm)
PRODUCT(multiply_mma8, Mma8Form)
PRODUCT(multiply_mma16, Mma16Form)

/* One thread per row. */
extern "C" __global__ void count_entries(const int64_t *begin, const uint32_t *words, int64_t num_rows,
                                         int64_t *counts) {
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= num_rows) return;
    int64_t count = 0;
    for (int64_t t = begin[row / TILE_ROWS]; t < begin[row / TILE_ROWS + 1]; t++)
        for (int32_t w = 0; w < STEP_WORDS; w++)
            count += __popc(words[t * TILE_WORDS + row % TILE_ROWS * STEP_WORDS + w]);
    counts[row] = count;
}
