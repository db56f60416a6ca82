/* Which columns the passes of a rotation mix, and where the signs of each lie in the draws.
 *
 * A row of d columns is rotated by passes over blocks of m columns, m the largest power of two that is at most d and
 * LARGEST_PASS: y = H (s c y), s random signs, c = 1 / sqrt(m) in float32, H the Walsh-Hadamard matrix by butterflies
 * (a, b) -> (a + b, a - b) of strides 1, 2, 4, ..., m / 2, each operation rounded once. Passes begin at the columns 0,
 * m, 2m, ...; if m doesn't divide d, one more pass ends with the row and overlaps the pass before, which is then
 * repeated; otherwise energy at the end of a row would never reach earlier columns. A row of up to MIXED_TWICE columns
 * that one pass fits is mixed twice: so few signs leave a bias, 0.09 of a rectified row of 16 columns, which a second
 * pass lowers to 0.02. Back: passes in reverse order, y = s c (H y).
 * Column c has sign bit c of the pass's draws: a 16-bit draw serves 16 columns, pass p begins at draw 2048 p, and
 * SIGNS_A_BLOCK columns share a block of Philox.
 */
#ifndef HPCGNN_ROTATION_H
#define HPCGNN_ROTATION_H
#include "philox.h"

#define MOST_ROTATED_COLUMNS 32768
#define LARGEST_PASS 1024
#define MOST_PASSES (MOST_ROTATED_COLUMNS / LARGEST_PASS + 1) /* two follow, where one fewer fits side by side */
#define MIXED_TWICE 32
#define SIGNS_A_BLOCK 128
#define BLOCKS_A_PASS (2048 / PHILOX_DRAWS)
#define MOST_SIGN_BLOCKS (MOST_PASSES * (LARGEST_PASS / SIGNS_A_BLOCK) + 1) /* one pass may begin within a block */

#define COLUMNS_TOGETHER 4096 /* of rows that are rotated together: half of a first cache */

typedef struct {
    int64_t dim, width, stride; /* columns of the row, of a pass, and between rows that are rotated together */
    float scale;
    int num_together, num_passes, num_blocks;
    int start[MOST_PASSES];           /* first column of each pass */
    int first_sign[MOST_PASSES];      /* its bit in the row's blocks of signs */
    uint32_t block[MOST_SIGN_BLOCKS]; /* the blocks of signs, by their numbers */
} rotation_plan;

/* First column of a pass. */
static inline int pass_start(int64_t dim, int64_t width, int pass) {
    const int64_t num_whole = dim / width;
    if (pass < num_whole) return (int)(pass * width);
    return (int)(pass == num_whole ? dim - width : (num_whole - 1) * width);
}

/* dim is at most MOST_ROTATED_COLUMNS; num_rows is how many rows are rotated together where they are narrow. */
static inline rotation_plan rotation_plan_of(int64_t dim, int num_rows) {
    rotation_plan plan = {.dim = dim, .width = 1, .stride = (dim + 63) / 64 * 64 + 16}; /* in vectors, by no power of 2 */
    const int64_t num_fitting = COLUMNS_TOGETHER / plan.stride;
    plan.num_together = num_fitting < 1 ? 1 : num_fitting < num_rows ? (int)num_fitting : num_rows;
    while (plan.width < LARGEST_PASS && 2 * plan.width <= dim) plan.width *= 2;
    plan.scale = (float)(1.0 / __builtin_sqrt((double)plan.width));
    const int num_passes = (int)(dim / plan.width) + (dim % plan.width ? 2 : dim <= MIXED_TWICE);
    for (int pass = 0; pass < num_passes; pass++) {
        const int first = pass_start(dim, plan.width, pass);
        plan.start[plan.num_passes++] = first;
        plan.first_sign[pass] = SIGNS_A_BLOCK * plan.num_blocks + first % SIGNS_A_BLOCK;
        for (int64_t block = first / SIGNS_A_BLOCK; block * SIGNS_A_BLOCK < first + plan.width; block++)
            plan.block[plan.num_blocks++] = (uint32_t)(pass * BLOCKS_A_PASS + block);
    }
    return plan;
}
#endif
