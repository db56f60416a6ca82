/* Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 *
 * A draw is a 16-bit number addressed by what it is for, so any rank, thread or device can make it again:
 *   key     = (seed, epoch)
 *   counter = (column / 8, stream, low half of the global node id, high half)
 *   draw of a column = 16 bits number column % 8 of the 128-bit block, low half first.
 * `stream` packs purpose, layer and part (see hpcgnn/ops/counter.py).
 */
#ifndef HPCGNN_PHILOX_H
#define HPCGNN_PHILOX_H
#include <stdint.h>

#define PHILOX_DRAWS 8 /* 16-bit draws per block */
#define PHILOX_LANES 16 /* blocks made together, for SIMD */
#define PHILOX_ROUNDS 10
#define PHILOX_MULTIPLIER_0 0xD2511F53u
#define PHILOX_MULTIPLIER_1 0xCD9E8D57u
#define PHILOX_KEY_STEP_0 0x9E3779B9u
#define PHILOX_KEY_STEP_1 0xBB67AE85u

typedef struct {
    uint32_t seed, epoch, stream;
} counter_key;

/* The keys of all rounds, made once for many draws. */
typedef struct {
    uint64_t stream, key0[PHILOX_ROUNDS], key1[PHILOX_ROUNDS];
} philox_schedule;

static inline philox_schedule philox_schedule_of(counter_key key) {
    philox_schedule schedule = {.stream = key.stream};
    for (uint32_t round = 0; round < PHILOX_ROUNDS; round++) {
        schedule.key0[round] = key.seed + round * PHILOX_KEY_STEP_0;
        schedule.key1[round] = key.epoch + round * PHILOX_KEY_STEP_1;
    }
    return schedule;
}

/* Little-endian: the low half of a word is its first draw. */
typedef union {
    uint32_t words[4 * PHILOX_LANES];
    uint16_t of[PHILOX_DRAWS * PHILOX_LANES];
} philox_block;

/* Fill draws->of[0 .. 8*PHILOX_LANES) for the column blocks first_block .. first_block + PHILOX_LANES - 1 of a node. */
static inline __attribute__((always_inline)) void philox_draws(counter_key key, int64_t node_id,
                                                               uint32_t first_block, philox_block *restrict draws) {
    /* 32-bit words in 64-bit lanes: a product is then one vector instruction, and its high half one shift. The high
     * half of a lane is left dirty where the next product ignores it. */
    uint64_t c0[PHILOX_LANES], c1[PHILOX_LANES], c2[PHILOX_LANES], c3[PHILOX_LANES];
#pragma omp simd
    for (int i = 0; i < PHILOX_LANES; i++) {
        c0[i] = first_block + (uint32_t)i;
        c1[i] = key.stream;
        c2[i] = (uint64_t)node_id & 0xffffffffu;
        c3[i] = (uint64_t)node_id >> 32;
    }
    uint32_t k0 = key.seed, k1 = key.epoch;
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
#pragma omp simd
        for (int i = 0; i < PHILOX_LANES; i++) {
            const uint64_t p0 = (c0[i] & 0xffffffffu) * PHILOX_MULTIPLIER_0;
            const uint64_t p1 = (c2[i] & 0xffffffffu) * PHILOX_MULTIPLIER_1;
            c0[i] = (p1 >> 32) ^ c1[i] ^ k0;
            c2[i] = (p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = p1;
            c3[i] = p0;
        }
        k0 += PHILOX_KEY_STEP_0;
        k1 += PHILOX_KEY_STEP_1;
    }
#pragma omp simd
    for (int i = 0; i < PHILOX_LANES; i++) {
        draws->words[4 * i] = (uint32_t)c0[i];
        draws->words[4 * i + 1] = (uint32_t)c1[i];
        draws->words[4 * i + 2] = (uint32_t)c2[i];
        draws->words[4 * i + 3] = (uint32_t)c3[i];
    }
}
#endif
