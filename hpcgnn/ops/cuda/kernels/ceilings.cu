/* Limits of the device that benchmarks compare kernels with: rows gathered, and 1-bit products in registers.
 *
 * Maths: gather_rows reads rows[indices[e]] for every entry e and leaves the XOR of all words that a thread has read;
 * multiply_bits_* adds num_rounds times SETS equal products of 1-bit tiles made of words of `pattern`, and
 * leaves the sum of a lane's elements of all of them.
 * Threads: gather_rows has 256 per block; `lanes` threads share a row by vectors of 16 bytes, and each keeps AHEAD rows
 * in flight, as many as hide the memory's latency. Products: a warp has SETS tiles, which do not wait for each other.
 * Nothing is staged or scaled, and only one word per thread is stored.
 * Determinism: integers, one thread per element. */
#include "device.cuh"

#define THREADS 256
#define AHEAD 4
#define SETS 8

extern "C" __global__ void __launch_bounds__(THREADS)
gather_rows(const uint32_t *rows, const int32_t *indices, int64_t num_entries, int32_t entries_a_block,
            int32_t row_vectors, int32_t lanes, uint32_t *out) {
    const uint4 *vectors = reinterpret_cast<const uint4 *>(rows);
    const int32_t thread = static_cast<int32_t>(threadIdx.x), num_groups = THREADS / lanes;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * entries_a_block;
    const int64_t stop = min(first + entries_a_block, num_entries);
    uint32_t fold = 0;
    for (int64_t e = first + thread / lanes; e < stop; e += AHEAD * num_groups) {
        int64_t row[AHEAD];
        #pragma unroll
        for (int32_t k = 0; k < AHEAD; k++) row[k] = e + k * num_groups < stop ? indices[e + k * num_groups] : -1;
        for (int32_t v = thread % lanes; v < row_vectors; v += lanes)
            #pragma unroll
            for (int32_t k = 0; k < AHEAD; k++)
                if (row[k] >= 0) {
                    const uint4 words = vectors[row[k] * row_vectors + v];
                    fold ^= words.x ^ words.y ^ words.z ^ words.w;
                }
    }
    out[static_cast<int64_t>(blockIdx.x) * THREADS + thread] = fold;
}

DEVICE uint32_t pattern(uint32_t lane, uint32_t word) { return (8 * lane + word + 1) * 0x9e3779b1u; }

extern "C" __global__ void __launch_bounds__(THREADS) multiply_bits_mma8(int32_t num_rounds, int32_t *out) {
    const uint32_t lane = threadIdx.x % WARP_SIZE, a = pattern(lane, 0), b = pattern(lane, 4);
    int sum[SETS][2] = {};
    for (int32_t round = 0; round < num_rounds; round++)
        #pragma unroll
        for (int32_t s = 0; s < SETS; s++) mma_m8n8k128_b1_and_popc(sum[s][0], sum[s][1], a, b);
    int32_t total = 0;
    for (int32_t s = 0; s < SETS; s++) total += sum[s][0] + sum[s][1];
    out[static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS) multiply_bits_mma16(int32_t num_rounds, int32_t *out) {
    const uint32_t lane = threadIdx.x % WARP_SIZE;
    const uint32_t a[4] = {pattern(lane, 0), pattern(lane, 1), pattern(lane, 2), pattern(lane, 3)};
    const uint32_t b[2] = {pattern(lane, 4), pattern(lane, 5)};
    int sum[SETS][4] = {};
    for (int32_t round = 0; round < num_rounds; round++)
        #pragma unroll
        for (int32_t s = 0; s < SETS; s++) mma_m16n8k256_b1_and_popc(sum[s], a, b);
    int32_t total = 0;
    for (int32_t s = 0; s < SETS; s++) total += sum[s][0] + sum[s][1] + sum[s][2] + sum[s][3];
    out[static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x] = total;
}
