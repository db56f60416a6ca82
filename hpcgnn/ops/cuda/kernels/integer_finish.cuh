/* Finishes the sums of a block of rows: scales, the rows' own part, bias, LayerNorm and ReLU, then values, codes as
 * planes, or both. Steps and order are the same as in ext/src/integer_rows_body.h, so the bits are the same.
 *
 * Threads: 16 lanes per row; lane k has column k and every 16th column behind it. These are the sixteen running sums of
 * LayerNorm's moments, folded in the host's order. A row's values stay in shared memory until its moments are known,
 * and its words of codes until all are stored. Determinism: one lane per element; flags of faults are or-ed. */
#ifndef HPCGNN_INTEGER_FINISH_CUH
#define HPCGNN_INTEGER_FINISH_CUH
#include "integer_codes.cuh"

#define ROW_LANES 16
#define BLOCK_ROWS 8 /* of 4 warps */

struct RowEnd {
    int64_t num_rows;
    int32_t dim, cells; /* columns, and words of shared memory per row for them */
    const int32_t *degree, *count; /* in the whole graph, and entries that were summed, of each row */
    int32_t shift;                 /* what was added to every entry of a sum */
    const uint32_t *near;          /* the rows' own fields, or NULL */
    int32_t field_bits;
    int64_t field_words;
    float epsilon;
    const float *row_factor; /* of each row, or NULL */
    DegreeTable row_step;    /* a factor by in-degree, or NULL */
    const float *column_scale; /* or NULL */
    const int32_t *own; /* (num_rows, dim), or NULL */
    DegreeTable own_step;
    const float *own_scale, *bias, *norm_weight, *norm_bias; /* the last three may be NULL */
    float norm_eps;
    int32_t rectifies;
    float *values;    /* (num_rows, dim), or NULL */
    uint32_t *planes; /* (num_rows, bit_width, line_words), or NULL */
    int32_t bit_width, is_signed, line_words;
    DegreeTable step, limit;
    int32_t *faults;
};

/* The value of a column before its scales, from an exact sum. */
DEVICE float value_of_sum(const RowEnd &end, int64_t row, int32_t j, int32_t sum) {
    if (end.shift) sum -= end.shift * end.count[row];
    if (!end.near) return (float)sum;
    const int32_t near = field_of(end.near + row * end.field_words, end.field_bits, j);
    return __fadd_rn((float)(sum + near), __fmul_rn((float)near, end.epsilon));
}

DEVICE float scaled(const RowEnd &end, int64_t row, int32_t j, float x) {
    const int32_t degree = end.degree[row];
    if (end.row_factor) x = __fmul_rn(x, end.row_factor[row]);
    if (end.row_step.values) x = __fmul_rn(x, end.row_step.of(degree));
    if (end.column_scale) x = __fmul_rn(x, end.column_scale[j]);
    if (end.own) {
        const float own = __fmul_rn((float)end.own[row * end.dim + j], end.own_step.of(degree));
        x = __fadd_rn(x, __fmul_rn(own, end.own_scale[j]));
    }
    return end.bias ? __fadd_rn(x, end.bias[j]) : x;
}

/* All lanes of a warp: mean and 1 / sqrt(variance + eps) of the `dim` values that 16 of them hold in `cells`; dim is 0
 * where there is no row. */
DEVICE void find_moments(const RowEnd &end, const float *cells, int32_t lane, int32_t dim, float &mean,
                         float &inverse) {
    float sum = 0.0f, squares = 0.0f;
    for (int32_t j = lane; j < dim; j += ROW_LANES) sum = __fadd_rn(sum, cells[j]);
    mean = __fdiv_rn(sum_of_lanes(sum, ROW_LANES), (float)end.dim);
    for (int32_t j = lane; j < dim; j += ROW_LANES) {
        const float centered = __fsub_rn(cells[j], mean);
        squares = __fadd_rn(squares, __fmul_rn(centered, centered));
    }
    const float variance = __fdiv_rn(sum_of_lanes(squares, ROW_LANES), (float)end.dim);
    inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, end.norm_eps)));
}

/* All lanes of a warp, which has two rows: word `word` of every plane of the codes of columns 32 * word and on. */
DEVICE void pack_word(const RowEnd &end, uint32_t low, uint32_t high, int32_t word, int32_t lane, uint32_t *words) {
    const int32_t half = lane_number() / ROW_LANES * ROW_LANES;
    for (int32_t p = 0; p < end.bit_width; p++) {
        const uint32_t first = __ballot_sync(FULL_WARP, (int)(low >> p & 1)) >> half & 0xffffu;
        const uint32_t second = __ballot_sync(FULL_WARP, (int)(high >> p & 1)) >> half & 0xffffu;
        if (lane == p) words[p * end.line_words + word] = first | second << ROW_LANES;
    }
}

struct RowScales {
    float mean, inverse, step, limit;
    int32_t offset;
};

/* One column's value and, where they are asked for, its code with half a range added; faults are or-ed. */
DEVICE uint32_t finish_column(const RowEnd &end, int64_t row, int32_t j, const float *cells, const RowScales &scales,
                              int32_t &faults) {
    float x = cells[j];
    if (end.norm_weight)
        x = __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(x, scales.mean), scales.inverse), end.norm_weight[j]),
                      end.norm_bias[j]);
    if (x != x) faults |= ROW_HAS_NAN;
    if (end.rectifies && x <= 0.0f) x = 0.0f;
    if (end.values) end.values[row * end.dim + j] = x;
    if (!end.planes) return 0;
    if (x < 0.0f && !end.is_signed) faults |= ROW_IS_NEGATIVE;
    return (uint32_t)(signed_code(x, scales.step, scales.limit) + scales.offset);
}

/* All lanes of a warp: finishes two rows. `cells` holds their values before scaling, each lane its own columns. A row
 * of -1 is none. `words` has room for the words of all planes of the row. */
DEVICE void end_rows(const RowEnd &end, int64_t row, float *cells, uint32_t *words) {
    const int32_t lane = lane_number() % ROW_LANES;
    const bool is_inside = row >= 0;
    int32_t faults = 0;
    RowScales scales = {0.0f, 1.0f, 1.0f, 0.0f, 0};
    if (is_inside)
        for (int32_t j = lane; j < end.dim; j += ROW_LANES) cells[j] = scaled(end, row, j, cells[j]);
    if (end.norm_weight) find_moments(end, cells, lane, is_inside ? end.dim : 0, scales.mean, scales.inverse);
    if (is_inside && end.planes) {
        scales.step = end.step.of(end.degree[row]);
        scales.limit = end.limit.of(end.degree[row]);
        scales.offset = end.is_signed ? 1 << (end.bit_width - 1) : 0;
    }
    for (int32_t first = 0; first < end.dim; first += 2 * ROW_LANES) {
        uint32_t code[2] = {0, 0};
        for (int32_t k = 0; k < 2; k++) {
            const int32_t j = first + k * ROW_LANES + lane;
            if (is_inside && j < end.dim) code[k] = finish_column(end, row, j, cells, scales, faults);
        }
        if (end.planes) pack_word(end, code[0], code[1], first / (2 * ROW_LANES), lane, words);
    }
    if (end.planes) {
        const int32_t num_words = end.bit_width * end.line_words;
        __syncwarp();
        for (int32_t w = lane; is_inside && w < num_words; w += ROW_LANES) end.planes[row * num_words + w] = words[w];
    }
    if (faults) atomicOr(end.faults, faults);
}
#endif
