/* Products of 1-bit tiles by their definition, over fragments that lie as kernels/bit_mma.cuh says. */
#ifndef HPCGNN_EMULATED_BIT_MMA_H
#define HPCGNN_EMULATED_BIT_MMA_H
#include "warp_primitives.h"

namespace emulation {
/* popcount(row AND column), the words of row in `of_a` and of column in `of_b` of four lanes each. */
PRIMITIVE int common_bits(const brought &all, int row, int of_a, int column, int of_b) {
    int bits = 0;
    for (int part = 0; part < 4; part++)
        bits += __builtin_popcount(all.words[4 * row + part][of_a] & all.words[4 * column + part][of_b]);
    return bits;
}
}

PRIMITIVE void mma_m8n8k128_b1_and_popc(int &c0, int &c1, uint32_t a, uint32_t b, AT_LINE) {
    const uint32_t words[2] = {a, b};
    const emulation::brought &all = emulation::meet(emulation::MMA, 0xffffffffu, line, words, 2);
    const int row = emulation::lane_number() / 4, column = emulation::lane_number() % 4 * 2;
    c0 += emulation::common_bits(all, row, 0, column, 1);
    c1 += emulation::common_bits(all, row, 0, column + 1, 1);
}

PRIMITIVE void mma_m16n8k256_b1_and_popc(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                AT_LINE) {
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const emulation::brought &all = emulation::meet(emulation::MMA, 0xffffffffu, line, words, 6);
    const int row = emulation::lane_number() / 4, column = emulation::lane_number() % 4 * 2;
    for (int i = 0; i < 4; i++) { /* a0 and a2 are of the upper rows, a1 and a3 of the lower ones */
        const int upper = i / 2;
        c[i] += emulation::common_bits(all, row, upper, column + i % 2, 4);
        c[i] += emulation::common_bits(all, row, upper + 2, column + i % 2, 5);
    }
}
#endif
