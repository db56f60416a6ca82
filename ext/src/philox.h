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

#define PHILOX_DRAWS 8 /* 16-bit draws a block */
#define PHILOX_LANES 16 /* blocks made together, for SIMD */

typedef struct {
    uint32_t seed, epoch, stream;
} counter_key;

/* Fill draws[0 .. 8*PHILOX_LANES) for the column blocks first_block .. first_block + PHILOX_LANES - 1 of one node. */
static inline __attribute__((always_inline)) void philox_draws(counter_key key, int64_t node_id, uint32_t first_block, uint16_t *restrict draws) {
    uint32_t c0[PHILOX_LANES], c1[PHILOX_LANES], c2[PHILOX_LANES], c3[PHILOX_LANES];
    for (int i = 0; i < PHILOX_LANES; i++) {
        c0[i] = first_block + (uint32_t)i;
        c1[i] = key.stream;
        c2[i] = (uint32_t)((uint64_t)node_id & 0xffffffffu);
        c3[i] = (uint32_t)((uint64_t)node_id >> 32);
    }
    uint32_t k0 = key.seed, k1 = key.epoch;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < PHILOX_LANES; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)p1;
            c3[i] = (uint32_t)p0;
            c0[i] = n0;
            c2[i] = n2;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < PHILOX_LANES; i++) {
        uint16_t *out = draws + PHILOX_DRAWS * i;
        out[0] = (uint16_t)c0[i];
        out[1] = (uint16_t)(c0[i] >> 16);
        out[2] = (uint16_t)c1[i];
        out[3] = (uint16_t)(c1[i] >> 16);
        out[4] = (uint16_t)c2[i];
        out[5] = (uint16_t)(c2[i] >> 16);
        out[6] = (uint16_t)c3[i];
        out[7] = (uint16_t)(c3[i] >> 16);
    }
}
#endif
