/* The draws of ext/src/philox.h on the device, one block of eight a call.
 *
 *   key = (seed, epoch), counter = (block, stream, low half of the node id, high half)
 * Draw j of block k is that of column 8k + j: the same number on every rank, thread and device. */
#ifndef HPCGNN_PHILOX_CUH
#define HPCGNN_PHILOX_CUH
#include "device.cuh"

constexpr int PHILOX_DRAWS = 8; /* 16-bit draws per block */

struct counter_key {
    uint32_t seed, epoch, stream;
};

DEVICE uint4 philox_block(counter_key key, int64_t node_id, uint32_t block) {
    uint4 c = make_uint4(block, key.stream, static_cast<uint32_t>(node_id),
                         static_cast<uint32_t>(static_cast<uint64_t>(node_id) >> 32));
    uint32_t k0 = key.seed, k1 = key.epoch;
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = static_cast<uint64_t>(c.x) * 0xD2511F53u, p1 = static_cast<uint64_t>(c.z) * 0xCD9E8D57u;
        c = make_uint4(static_cast<uint32_t>(p1 >> 32) ^ c.y ^ k0, static_cast<uint32_t>(p1),
                       static_cast<uint32_t>(p0 >> 32) ^ c.w ^ k1, static_cast<uint32_t>(p0));
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* Draw j of a block, 0 to 2^16 - 1; j is best a constant. */
DEVICE uint32_t philox_draw(uint4 block, int j) {
    const uint32_t word = j < 2 ? block.x : j < 4 ? block.y : j < 6 ? block.z : block.w;
    return word >> j % 2 * 16 & 0xffffu;
}
#endif
