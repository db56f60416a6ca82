/* The draws of philox.h in vectors, compiled once per SIMD level. Include it after vector.h.
 *
 * A vector holds one word of LANES / 2 blocks, whose draws belong to a group of 4 * LANES columns. The rounds of
 * several groups are interleaved, since those of one wait for each other. */
#include "philox.h"

/* Elements of two vectors by their numbers. GCC has clang's builtin since version 12. */
#undef SHUFFLE
#if defined(__clang__)
#define SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

#undef GROUP
#define GROUP (4 * LANES)
#undef GROUPS_TOGETHER
#define GROUPS_TOGETHER (LANES == 16 ? 4 : 2) /* their words fit the registers */
#undef DRAWN_COLUMNS
#define DRAWN_COLUMNS (GROUPS_TOGETHER * GROUP)

typedef uint64_t LEVEL(u64s) __attribute__((vector_size(4 * LANES)));
typedef uint16_t LEVEL(u16_pairs) __attribute__((vector_size(4 * LANES)));
#undef vector_u64
#undef vector_u16_pairs
#define vector_u64 LEVEL(u64s)
#define vector_u16_pairs LEVEL(u16_pairs)

/* Products of the low words of 64-bit lanes. */
INLINE vector_u64 LEVEL(multiply_low_words)(vector_u64 a, uint64_t b) {
#if LEVEL_LANES == 16
    return (vector_u64)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64((int64_t)b));
#elif LEVEL_LANES == 8
    return (vector_u64)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x((int64_t)b));
#elif defined(__SSE2__)
    return (vector_u64)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x((int64_t)b));
#else
    return (a & 0xffffffff) * b;
#endif
}

INLINE vector_u64 LEVEL(xor_three)(vector_u64 a, vector_u64 b, uint64_t c) {
#if LEVEL_LANES == 16
    return (vector_u64)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, _mm512_set1_epi64((int64_t)c), 0x96);
#else
    return a ^ b ^ c;
#endif
}

/* Numbers first, first + 1, ... of the blocks. */
INLINE vector_u64 LEVEL(block_numbers)(uint32_t first) {
    static const uint64_t FROM_ZERO[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    vector_u64 number;
    memcpy(&number, FROM_ZERO, sizeof number);
    return number + first;
}

/* Draws as the low halves of 32-bit lanes, in the order of the columns; `high` fills the high halves.
 * words01 holds draws 0 to 3 of every block, words23 draws 4 to 7. */
INLINE void LEVEL(spread_draws)(vector_u64 words01, vector_u64 words23, uint16_t high, vector_u32 draws[4]) {
    const vector_u16_pairs filling = (vector_u16_pairs){0} + high;
#if LEVEL_LANES == 16
    /* Interleaving works within 128-bit lanes, so the halves of two vectors of columns must share them. */
    const __m512i low = (__m512i)words01, top = (__m512i)words23, fill = (__m512i)filling;
    const __m512i first = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 2, 8, 10, 1, 3, 9, 11), top);
    const __m512i second = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 6, 12, 14, 5, 7, 13, 15), top);
    draws[0] = (vector_u32)_mm512_unpacklo_epi16(first, fill);
    draws[1] = (vector_u32)_mm512_unpackhi_epi16(first, fill);
    draws[2] = (vector_u32)_mm512_unpacklo_epi16(second, fill);
    draws[3] = (vector_u32)_mm512_unpackhi_epi16(second, fill);
#elif LEVEL_LANES == 8
    const __m256i fill = (__m256i)filling;
    const __m256i first = _mm256_permute2x128_si256((__m256i)words01, (__m256i)words23, 0x20);
    const __m256i second = _mm256_permute2x128_si256((__m256i)words01, (__m256i)words23, 0x31);
    draws[0] = (vector_u32)_mm256_unpacklo_epi16(first, fill);
    draws[1] = (vector_u32)_mm256_unpackhi_epi16(first, fill);
    draws[2] = (vector_u32)_mm256_unpacklo_epi16(second, fill);
    draws[3] = (vector_u32)_mm256_unpackhi_epi16(second, fill);
#else
    const vector_u16_pairs low = (vector_u16_pairs)words01, top = (vector_u16_pairs)words23;
    draws[0] = (vector_u32)SHUFFLE(vector_u16_pairs, low, filling, 0, 8, 1, 9, 2, 10, 3, 11);
    draws[1] = (vector_u32)SHUFFLE(vector_u16_pairs, top, filling, 0, 8, 1, 9, 2, 10, 3, 11);
    draws[2] = (vector_u32)SHUFFLE(vector_u16_pairs, low, filling, 4, 12, 5, 13, 6, 14, 7, 15);
    draws[3] = (vector_u32)SHUFFLE(vector_u16_pairs, top, filling, 4, 12, 5, 13, 6, 14, 7, 15);
#endif
}

/* All rounds of n vectors of counters, n a constant. The low half of a lane is a word of a block, the high noise. */
INLINE void LEVEL(philox_rounds)(const philox_schedule *schedule, int n, vector_u64 *c0, vector_u64 *c1, vector_u64 *c2,
                                 vector_u64 *c3) {
    for (int round = 0; round < PHILOX_ROUNDS; round++)
#pragma GCC unroll 4
        for (int g = 0; g < n; g++) {
            const vector_u64 p0 = LEVEL(multiply_low_words)(c0[g], PHILOX_MULTIPLIER_0);
            const vector_u64 p1 = LEVEL(multiply_low_words)(c2[g], PHILOX_MULTIPLIER_1);
            /* High halves of lanes are left dirty where the next product ignores them. */
            c0[g] = LEVEL(xor_three)(p1 >> 32, c1[g], schedule->key0[round]);
            c2[g] = LEVEL(xor_three)(p0 >> 32, c3[g], schedule->key1[round]);
            c1[g] = p1;
            c3[g] = p0;
        }
}

/* Draws of the columns j .. j+n*GROUP-1 of a node, n a constant. */
INLINE void LEVEL(draw_groups)(const philox_schedule *schedule, int64_t node_id, int64_t j, int n, uint16_t high,
                               vector_u32 *draws) {
    vector_u64 c0[GROUPS_TOGETHER], c1[GROUPS_TOGETHER], c2[GROUPS_TOGETHER], c3[GROUPS_TOGETHER];
#pragma GCC unroll 4
    for (int g = 0; g < n; g++) {
        c0[g] = LEVEL(block_numbers)((uint32_t)((j + g * GROUP) / PHILOX_DRAWS));
        c1[g] = (vector_u64){0} + schedule->stream;
        c2[g] = (vector_u64){0} + ((uint64_t)node_id & 0xffffffff);
        c3[g] = (vector_u64){0} + ((uint64_t)node_id >> 32);
    }
    LEVEL(philox_rounds)(schedule, n, c0, c1, c2, c3);
#pragma GCC unroll 4
    for (int g = 0; g < n; g++)
        LEVEL(spread_draws)((c0[g] & 0xffffffff) | c1[g] << 32, (c2[g] & 0xffffffff) | c3[g] << 32, high,
                            draws + 4 * g);
}

/* Draws of the columns j .. j+num_columns-1 of a node, j a multiple of 8, at most DRAWN_COLUMNS; LANES to a vector, in
 * whole groups. A draw is the low half of its 32-bit lane, `high` the high half. */
static void LEVEL(fill_draws)(const philox_schedule *schedule, int64_t node_id, int64_t j, int64_t num_columns,
                              uint16_t high, vector_u32 draws[DRAWN_COLUMNS / LANES]) {
    if (num_columns > (GROUPS_TOGETHER - 1) * GROUP)
        LEVEL(draw_groups)(schedule, node_id, j, GROUPS_TOGETHER, high, draws);
    else
        for (int64_t g = 0; g * GROUP < num_columns; g++)
            LEVEL(draw_groups)(schedule, node_id, j + g * GROUP, 1, high, draws + 4 * g);
}
