/* The randomized Hadamard rotation of a row, and back, in place, by the lanes that hold it.
 *
 * Maths     passes of y = H (c s y) over blocks of m columns, a power of two: s random signs, c = 1 / sqrt(m) in
 *           float32, H the Walsh-Hadamard matrix by butterflies (a, b) -> (a + b, a - b) of strides 1, 2, 4, ..., m / 2.
 *           Blocks begin at 0, m, 2m, ...; where m doesn't divide the row, one more ends with it, over columns that an
 *           earlier pass has mixed, and the block before that comes once more. A row of up to MIXED_TWICE columns
 *           that one block fits is mixed twice. Back: passes in reverse order, y = c s (H y).
 * Threads   a block of columns is held in registers: lane l of WIDTH has its columns l, l + WIDTH, ... So strides below
 *           WIDTH are exchanges between lanes, the others stay in a lane.
 * Results   equal the host's to the bit: each operation rounds once, and butterflies have one order.
 *
 * The sign of column c in pass p is bit c % 16 of the draw of column 2048 p + c / 16, so that a block of Philox has
 * those of 128 columns, and a word those of 32. */
#ifndef HPCGNN_ROTATION_CUH
#define HPCGNN_ROTATION_CUH
#include "philox.cuh"
#include "row_scale.cuh"

constexpr int SIGNS_A_WORD = 32, WORDS_A_BLOCK = 4, MIXED_TWICE = 32;
constexpr uint32_t BLOCKS_A_PASS = 2048 / PHILOX_DRAWS;

/* What rotates one row. */
struct row_rotation {
    counter_key key;
    int64_t node_id;
    int dim, block; /* columns of the row and of a pass */
    float scale;
};

/* Signs of the columns 32 * word ... in a pass, one a bit. */
DEVICE uint32_t sign_word(const row_rotation &r, int pass, int word) {
    const uint32_t block = static_cast<uint32_t>(pass) * BLOCKS_A_PASS + static_cast<uint32_t>(word / WORDS_A_BLOCK);
    const uint4 draws = philox_block(r.key, r.node_id, block);
    const int part = word % WORDS_A_BLOCK;
    return part == 0 ? draws.x : part == 1 ? draws.y : part == 2 ? draws.z : draws.w;
}

/* Signs of the 32 columns from start + 32 * lane on. */
DEVICE uint32_t signs_of_lane(const row_rotation &r, int pass, int start, int lane) {
    const int word = start / SIGNS_A_WORD + lane, shift = start % SIGNS_A_WORD;
    const uint32_t signs = sign_word(r, pass, word);
    return shift == 0 ? signs : __funnelshift_r(signs, sign_word(r, pass, word + 1), static_cast<uint32_t>(shift));
}

/* The columns of this lane times c, and the signs that the lanes hold. */
template <int WIDTH, int NUM>
DEVICE void scale_and_sign(float (&y)[NUM], float scale, uint32_t signs, row_lanes lanes) {
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < NUM; k++) {
        const int first = WIDTH * k;
        if (first % SIGNS_A_WORD == 0) word = __shfl_sync(lanes.mask, signs, first / SIGNS_A_WORD, WIDTH);
        const uint32_t sign = word >> (first % SIGNS_A_WORD + lanes.lane) << 31;
        y[k] = __uint_as_float(__float_as_uint(__fmul_rn(y[k], scale)) ^ sign);
    }
}

template <int WIDTH, int NUM> DEVICE void hadamard(float (&y)[NUM], int num_columns, row_lanes lanes) {
#pragma unroll
    for (int stride = 1; stride < WIDTH; stride *= 2) {
        if (stride >= num_columns) break; /* of a block narrower than its lanes */
#pragma unroll
        for (int k = 0; k < NUM; k++) {
            const float other = __shfl_xor_sync(lanes.mask, y[k], stride, WIDTH);
            y[k] = other + (lanes.lane & stride ? -y[k] : y[k]);
        }
    }
#pragma unroll
    for (int stride = 1; stride < NUM; stride *= 2)
#pragma unroll
        for (int k = 0; k < NUM; k++) {
            if (k & stride) continue;
            const float a = y[k], b = y[k + stride];
            y[k] = a + b;
            y[k + stride] = a - b;
        }
}

/* One pass over the columns from `row` on. */
template <int WIDTH, int NUM, bool is_inverse>
DEVICE void rotate_block(float *row, const row_rotation &r, uint32_t signs, row_lanes lanes) {
    float y[NUM];
#pragma unroll
    for (int k = 0; k < NUM; k++) {
        const int j = WIDTH * k + lanes.lane;
        y[k] = j < r.block ? row[j] : 0.0f;
    }
    if (!is_inverse) scale_and_sign<WIDTH>(y, r.scale, signs, lanes);
    hadamard<WIDTH>(y, r.block, lanes);
    if (is_inverse) scale_and_sign<WIDTH>(y, r.scale, signs, lanes);
#pragma unroll
    for (int k = 0; k < NUM; k++) {
        const int j = WIDTH * k + lanes.lane;
        if (j < r.block) row[j] = y[k];
    }
}

/* All passes over a row in shared or global memory. The lanes have written it before, and may read it after. Blocks of
 * 1024 columns are held by 32 lanes, narrower ones by 16. */
template <bool is_inverse> DEVICE void rotate_row(float *row, const row_rotation &r, row_lanes lanes) {
    const int num_whole = r.dim / r.block, num_passes = num_whole + (r.dim % r.block ? 2 : r.dim <= MIXED_TWICE);
    for (int n = 0; n < num_passes; n++) {
        const int pass = is_inverse ? num_passes - 1 - n : n;
        const int start = pass == num_whole ? r.dim - r.block : min(pass, num_whole - 1) * r.block;
        const uint32_t signs = signs_of_lane(r, pass, start, lanes.lane);
        __syncwarp(lanes.mask);
        switch (r.block) {
        case 1024: rotate_block<32, 32, is_inverse>(row + start, r, signs, lanes); break;
        case 512: rotate_block<16, 32, is_inverse>(row + start, r, signs, lanes); break;
        case 256: rotate_block<16, 16, is_inverse>(row + start, r, signs, lanes); break;
        case 128: rotate_block<16, 8, is_inverse>(row + start, r, signs, lanes); break;
        case 64: rotate_block<16, 4, is_inverse>(row + start, r, signs, lanes); break;
        case 32: rotate_block<16, 2, is_inverse>(row + start, r, signs, lanes); break;
        default: rotate_block<16, 1, is_inverse>(row + start, r, signs, lanes); break;
        }
    }
    __syncwarp(lanes.mask);
}
#endif
