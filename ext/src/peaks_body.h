/* Kernel body, compiled once per SIMD level by peaks.c. */
#include "vector.h"
#include "count_ones_body.h"
#include "word_dots_body.h"

/* Sums in registers, enough to hide the latency of one addition. */
#undef SUMS
#if LEVEL_LANES == 4
#define SUMS 8
#else
#define SUMS 12
#endif

/* Hides from the compiler what a register holds, at no cost. */
#undef FORGET
#if HPCGNN_X86
#define FORGET(v) __asm__ volatile("" : "+x"(v))
#elif defined(__aarch64__)
#define FORGET(v) __asm__ volatile("" : "+w"(v))
#else
#define FORGET(v) __asm__ volatile("" : "+m"(v))
#endif

INLINE int64_t LEVEL(sum_of_lanes)(const vector_u32 *sums) {
    int64_t total = 0;
    for (int i = 0; i < SUMS; i++)
        for (int lane = 0; lane < LANES; lane++) total += sums[i][lane];
    return total;
}

static int64_t LEVEL(bit_products)(int64_t num_products) {
    vector_u32 sums[SUMS] = {{0}}, left = ~(vector_u32){0}, right = ~(vector_u32){0};
    for (int64_t done = 0; done < num_products; done += SUMS * LANES * 32) {
        FORGET(left);
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) {
            FORGET(right); /* so that no two counts are the same one */
            sums[i] += LEVEL(count_ones)(left & right);
        }
    }
    return LEVEL(sum_of_lanes)(sums);
}

static int64_t LEVEL(byte_products)(int64_t num_products) {
    vector_u32 sums[SUMS] = {{0}}, codes = (vector_u32){0} + (WORD == 4 ? 0x01010101u : 0x00010001u), weights = codes;
    for (int64_t done = 0; done < num_products; done += SUMS * LANES * WORD) {
        FORGET(codes);
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) {
            FORGET(weights);
            sums[i] = (vector_u32)LEVEL(add_dots)((vector_i32)sums[i], (vector_i32)codes, (vector_i32)weights);
        }
    }
    return LEVEL(sum_of_lanes)(sums);
}

/* Sums of ones are exact in float32 up to 2^24, so they are counted before. */
static int64_t LEVEL(float_products)(int64_t num_products) {
    const int64_t a_round = SUMS * LANES, most_rounds = 1 << 20;
    int64_t total = 0;
    for (int64_t done = 0; done < num_products;) {
        vector_f32 sums[SUMS] = {{0}}, left = LEVEL(repeat)(1.0f), right = left;
        for (int64_t round = 0; round < most_rounds && done < num_products; round++, done += a_round) {
            FORGET(left);
#pragma GCC unroll 12
            for (int i = 0; i < SUMS; i++) {
                FORGET(right);
                sums[i] = LEVEL(multiply_add)(left, right, sums[i]);
            }
        }
        for (int i = 0; i < SUMS; i++)
            for (int lane = 0; lane < LANES; lane++) total += (int64_t)sums[i][lane];
    }
    return total;
}
