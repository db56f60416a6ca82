/* Kernels that use the primitives one by one; test_emulation.py states what each must yield. No order of threads or
 * blocks changes a result. */
#include "device.cuh"

extern "C" __global__ void write_indices(int *out) {
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int *mine = out + (block * static_cast<int>(blockDim.x * blockDim.y * blockDim.z) + thread) * 6;
    mine[0] = threadIdx.x, mine[1] = threadIdx.y, mine[2] = threadIdx.z;
    mine[3] = blockIdx.x, mine[4] = blockIdx.y, mine[5] = blockIdx.z;
}

extern "C" __global__ void reverse(const int *in, int *out) {
    DYNAMIC_SHARED(int, kept);
    kept[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}

/* Transposes 32 x 32 through shared memory, one warp: ordered by __syncwarp alone. */
extern "C" __global__ void transpose(const int *in, int *out) {
    SHARED_MATRIX(int, tile, 32, 33);
    for (int row = 0; row < 32; row++) tile[row][threadIdx.x] = in[row * 32 + threadIdx.x];
    __syncwarp();
    for (int row = 0; row < 32; row++) out[row * 32 + threadIdx.x] = tile[threadIdx.x][row];
}

extern "C" __global__ void shuffle(const int *in, int *out, int by, int width) {
    const int x = in[threadIdx.x], n = blockDim.x;
    out[threadIdx.x] = __shfl_sync(FULL_WARP, x, by, width);
    out[n + threadIdx.x] = __shfl_up_sync(FULL_WARP, x, by, width);
    out[2 * n + threadIdx.x] = __shfl_down_sync(FULL_WARP, x, by, width);
    out[3 * n + threadIdx.x] = __shfl_xor_sync(FULL_WARP, x, by, width);
}

/* Halves of a warp go different ways, each with its own mask and number of rounds. */
extern "C" __global__ void vote(const int *in, uint32_t *out) {
    const bool is_upper = threadIdx.x % 32 >= 16;
    const uint32_t mask = is_upper ? 0xffff0000u : 0x0000ffffu;
    uint32_t votes = 0;
    if (is_upper)
        for (int bit = 0; bit < 3; bit++) votes ^= __ballot_sync(mask, in[threadIdx.x] >> bit & 1) << bit;
    else
        votes = __ballot_sync(mask, in[threadIdx.x] & 1);
    out[threadIdx.x] = votes;
    out[blockDim.x + threadIdx.x] = __any_sync(FULL_WARP, in[threadIdx.x] == 5);
    out[2 * blockDim.x + threadIdx.x] = __all_sync(FULL_WARP, in[threadIdx.x] < 7);
    out[3 * blockDim.x + threadIdx.x] = __syncthreads_count(in[threadIdx.x] == 5);
}

extern "C" __global__ void count_and_flag(const int *in, int *counts, int num) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= num) return;
    atomicAdd(counts + in[i] % 4, 1);
    atomicMax(counts + 4, in[i]);
}

extern "C" __global__ void multiply_bits(const uint32_t *a, const uint32_t *b, int *small, int *large) {
    const int lane = threadIdx.x, group = lane / 4, part = lane % 4;
    int c0 = small[group * 8 + part * 2], c1 = small[group * 8 + part * 2 + 1];
    mma_m8n8k128_b1_and_popc(c0, c1, a[group * 8 + part], b[group * 8 + part]);
    small[group * 8 + part * 2] = c0, small[group * 8 + part * 2 + 1] = c1;
    const uint32_t rows[4] = {a[group * 8 + part], a[(group + 8) * 8 + part], a[group * 8 + part + 4],
                              a[(group + 8) * 8 + part + 4]};
    const uint32_t columns[2] = {b[group * 8 + part], b[group * 8 + part + 4]};
    int c[4] = {0, 0, 0, 0};
    mma_m16n8k256_b1_and_popc(c, rows, columns);
    for (int i = 0; i < 4; i++) large[(group + i / 2 * 8) * 8 + part * 2 + i % 2] = c[i];
}

#define NARROW_KERNELS(T, suffix)                                                                                   \
    extern "C" __global__ void widen_##suffix(const T *in, float *out, int num) {                                   \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                                        \
        if (i < num) out[i] = load_f32(in, i);                                                                      \
    }                                                                                                               \
    extern "C" __global__ void round_##suffix(const float *in, T *out, int num) {                                   \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                                        \
        if (i < num) store_f32(out, i, in[i]);                                                                      \
    }
NARROW_KERNELS(__nv_bfloat16, bf16)
NARROW_KERNELS(__half, f16)

#define ARITHMETIC_KERNEL(T, suffix)                                                                                \
    extern "C" __global__ void combine_##suffix(const T *a, const T *b, T *out, int num) {                          \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                                        \
        if (i >= num) return;                                                                                       \
        out[i] = __hadd(a[i], b[i]);                                                                                \
        out[num + i] = __hmul(a[i], b[i]);                                                                          \
    }
ARITHMETIC_KERNEL(__nv_bfloat16, bf16)
ARITHMETIC_KERNEL(__half, f16)

extern "C" __global__ void fuse(const __half *a, const __half *b, const __half *c, __half *out, int num) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < num) out[i] = __hfma(a[i], b[i], c[i]);
}
