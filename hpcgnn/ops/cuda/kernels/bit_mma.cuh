/* Products of 1-bit tiles, D += popcount(A AND B), one warp per tile. Included by device.cuh.
 *
 * Fragments lie over the lanes as PTX has them; with group = lane / 4 and part = lane % 4:
 *   m8n8k128    a: row `group`, bits [32 part, +32)           b: column `group`, the same bits
 *               c0, c1: row `group`, columns 2 part, 2 part + 1
 *   m16n8k256   a0, a2: row `group`, bits [32 part, +32) and [128 + 32 part, +32); a1, a3: row `group` + 8
 *               b0, b1: column `group`, bits as a0, a2
 *               c0, c1: row `group`; c2, c3: row `group` + 8; columns as above
 * All 32 lanes take part. Sums are int32, exact. Before sm_80 there is only XOR: and = (|a| + |b| - xor) / 2.
 *
 * Reference: PTX ISA, "Matrix fragments for mma.m8n8k128" and "for mma.m16n8k256". */
#ifndef HPCGNN_BIT_MMA_CUH
#define HPCGNN_BIT_MMA_CUH

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
__device__ __forceinline__ int hpcgnn_bits_of_group(uint32_t word) {
    int bits = __popc(word);
    bits += __shfl_xor_sync(0xffffffffu, bits, 1);
    return bits + __shfl_xor_sync(0xffffffffu, bits, 2);
}

__device__ __forceinline__ void mma_m8n8k128_b1_and_popc(int &c0, int &c1, uint32_t a, uint32_t b) {
    int x0 = 0, x1 = 0;
    asm volatile("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(x0), "+r"(x1) : "r"(a), "r"(b));
    uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    const int column = (lane & 3) * 2, of_row = hpcgnn_bits_of_group(a), of_column = hpcgnn_bits_of_group(b);
    c0 += (of_row + __shfl_sync(0xffffffffu, of_column, column * 4) - x0) / 2;
    c1 += (of_row + __shfl_sync(0xffffffffu, of_column, column * 4 + 4) - x1) / 2;
}

__device__ __forceinline__ void mma_m16n8k256_b1_and_popc(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m8n8k128_b1_and_popc(c[0], c[1], a[0], b[0]);
    mma_m8n8k128_b1_and_popc(c[0], c[1], a[2], b[1]);
    mma_m8n8k128_b1_and_popc(c[2], c[3], a[1], b[0]);
    mma_m8n8k128_b1_and_popc(c[2], c[3], a[3], b[1]);
}
#else
__device__ __forceinline__ void mma_m8n8k128_b1_and_popc(int &c0, int &c1, uint32_t a, uint32_t b) {
    asm volatile("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.and.popc {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(c0), "+r"(c1) : "r"(a), "r"(b));
}

__device__ __forceinline__ void mma_m16n8k256_b1_and_popc(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
#endif
