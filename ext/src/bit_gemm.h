/* Products of matrices of b-bit codes, held as planes of bits: sum over planes of 2^(i+j) popcount(left_i AND right_j).
 *
 * A line is a row of the left matrix or a column of the right one; its bits lie along the contracted side, 32 per word,
 * lowest first, padded with zeros to whole steps of 128. Lines are padded to multiples of 8. */
#ifndef HPCGNN_BIT_GEMM_H
#define HPCGNN_BIT_GEMM_H
#include <stdint.h>

#define STEP_WORDS 4 /* 128 bits */
#define TILE_ROWS 8

enum { OUT_SUMS = 0, OUT_VALUES = 1, OUT_BITS = 2 };

/* The left matrix: planes of lines where tile_begin is NULL, otherwise one plane of 8 x 128 tiles in rows of tiles. */
typedef struct {
    const uint32_t *words;
    int64_t num_rows, num_steps; /* rows a multiple of 8; steps of 128 contracted bits */
    int num_planes;
    const int64_t *tile_begin; /* tile row r has the tiles tile_begin[r] .. tile_begin[r + 1] - 1 */
    const int32_t *tile_step;  /* the step of each */
    int skips_zeros;           /* look for tiles of zeros and leave them out */
    int reuses_tiles;          /* take a tile through all planes of the right matrix before the next one */
} bit_rows;

typedef struct {
    const uint32_t *words;
    int64_t num_lines; /* a multiple of 8 */
    int num_planes;
} bit_columns;

/* value = (row_step * column_step) * sum + ((row_zero * column_sum + row_sum * column_zero)
 *         + length * (row_zero * column_zero)), then gain and bias, then ReLU, where row_sum and column_sum are already
 * multiplied by their steps. Codes are floor((value - low) / step + offset), clamped. */
typedef struct {
    int kind;
    void *out; /* int32 or float32 (num_rows, num_columns), or planes of num_padded lines of line_words words */
    int64_t num_rows, num_columns;
    const float *row_step, *row_zero, *row_sum, *column_step, *column_zero, *column_sum;
    float length;
    const float *gain, *bias; /* of columns, or of rows, or NULL */
    int gain_is_by_row, bias_is_by_row, has_relu;
    float low, step, offset;
    int bit_width;
    int64_t num_padded, line_words;
} product_out;

/* Number of tiles, or of steps of rows of tiles, that were multiplied; -1 if memory is short. */
int64_t bit_product(bit_rows a, bit_columns b, product_out out);
#endif
