/* Rows with their neighbors in a list of tiles of bits, summed from planes of mapped codes and finished in one kernel.
 *
 * Maths: sum[v, j] = sum over planes p of 2^p popcount(tiles[v] AND planes_p[j]) (tile_products.cuh), then as
 * integer_finish.cuh says. A list holds no tile of zeros, so all are jumped; a tile meets all planes (QGTC, Sections 4.3
 * and 4.4).
 * Threads: a block has a row of tiles, which is 8 slots, and all columns. Its 4 warps have different groups of 32
 * columns; if there are fewer groups than warps, warps share a group, each with different tiles, and their sums are
 * added in shared memory. Then 16 lanes finish each row. Determinism: exact integers, so additions have no order. */
#include "tile_products.cuh"
#include "integer_rows.cuh"

template <typename Form>
DEVICE void add_tiles(const TileRow &row, const Lines &right, int64_t first_column, int32_t dim, bool adds,
                      int32_t *sums, int32_t cells) {
    SHARED_ARRAY(int32_t, fragments, WARPS * TILE_ROWS * SUM_STRIDE);
    const int32_t begin = (int32_t)threadIdx.x / WARP_SIZE * TILE_ROWS * SUM_STRIDE;
    Form form = {};
    add_with_reuse(row, right, first_column, form);
    form.store(fragments, begin);
    __syncwarp();
    for (int32_t r = 0; r < TILE_ROWS; r++) {
        const int64_t column = first_column + lane_number();
        const int32_t sum = fragments[begin + r * SUM_STRIDE + lane_number()];
        if (column >= dim) continue;
        if (adds) atomicAdd(sums + r * cells + column, sum);
        else sums[r * cells + column] = sum;
    }
    __syncwarp();
}

template <typename Form>
DEVICE void finish_tiles(const RowEnd &end, const int32_t *slot_row, const int64_t *begin, const int32_t *column,
                         const uint32_t *words, const Lines &right) {
    const BlockRow own = block_row(end);
    const int32_t warp = (int32_t)threadIdx.x / WARP_SIZE, num_groups = (end.dim + END_COLUMNS - 1) / END_COLUMNS;
    const int32_t num_shares = num_groups < WARPS ? WARPS / num_groups : 1;
    int32_t *sums = sums_of(own.cells - own.number * end.cells);
    const int64_t first = begin[blockIdx.x], count = begin[blockIdx.x + 1] - first;
    if (num_shares > 1) {
        for (int32_t k = (int32_t)threadIdx.x; k < BLOCK_ROWS * end.cells; k += (int32_t)blockDim.x) sums[k] = 0;
        __syncthreads();
    }
    /* A share has whole pairs of tiles, so that the form of two tiles is full. */
    const int64_t share = ((count + num_shares - 1) / num_shares + 1) / 2 * 2, part = warp / num_groups;
    for (int32_t group = num_shares > 1 ? warp % num_groups : warp; group < num_groups; group += WARPS) {
        if (num_shares > 1 && part >= num_shares) break; /* all lanes of the warp */
        const int64_t from = num_shares > 1 ? part * share : 0, to = num_shares > 1 ? from + share : count;
        const TileRow row = {words, column, first + (from < count ? from : count), first + (to < count ? to : count),
                             false};
        add_tiles<Form>(row, right, (int64_t)group * END_COLUMNS, end.dim, num_shares > 1, sums, end.cells);
    }
    __syncthreads();
    end_sums(end, slot_row[(int64_t)blockIdx.x * BLOCK_ROWS + own.number], own);
}

#define FINISH(name, Form) \
    extern "C" __global__ void name( \
        const int32_t *slot_row, const int64_t *begin, const int32_t *column, const uint32_t *words, \
        const uint32_t *right, int64_t num_right, int32_t right_width, int64_t num_right_steps, int64_t num_rows, \
        int32_t dim, int32_t cells, const int32_t *degree, const int32_t *count, int32_t shift, const uint32_t *near, \
        int32_t field_bits, int64_t field_words, float epsilon, const float *row_factor, const float *row_step, \
        int32_t num_row_steps, const float *column_scale, const int32_t *own, const float *own_step, \
        int32_t num_own_steps, const float *own_scale, const float *bias, const float *norm_weight, \
        const float *norm_bias, float norm_eps, int32_t rectifies, float *values, uint32_t *planes, int32_t bit_width, \
        int32_t is_signed, int32_t line_words, const float *step, const float *limit, int32_t num_steps, \
        int32_t *faults) { \
        const RowEnd end = ROW_END; \
        finish_tiles<Form>(end, slot_row, begin, column, words, {right, num_right, num_right_steps, right_width}); \
    }
FINISH(finish_popcount, PopcountForm)
FINISH(finish_mma8, Mma8Form)
FINISH(finish_mma16, Mma16Form)
