/* One step of Adam over flat buffers, and the check of a step's buffers, in one pass over them.
 *
 * Maths: as ext/src/adam_body.h, with its bits: compiled without fused multiply-adds, and the device's divisions and
 * square roots round to nearest.
 * Checks: the largest magnitudes of gradients and of results as bits of float32 without the sign, NaN above infinity,
 * and a hash of the weights in two halves, sums of mixed bits modulo 2^32. A check is the same in any order of threads.
 * Threads: each block takes every num_blocks-th run of blockDim.x values and writes one check; join_checks, one block,
 * joins the checks of all blocks. No atomics. */
#include "device.cuh"

constexpr int MAX_WARPS = 8;
constexpr uint32_t MAGNITUDE = 0x7fffffffu;

struct Check {
    uint32_t largest_gradient, largest_result, hash_low, hash_high;
};

DEVICE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

DEVICE uint32_t bits_of(float value) { return static_cast<uint32_t>(__float_as_int(value)); }

DEVICE Check joined(const Check &a, const Check &b) {
    return {larger(a.largest_gradient, b.largest_gradient), larger(a.largest_result, b.largest_result),
            a.hash_low + b.hash_low, a.hash_high + b.hash_high};
}

/* A weight's bits and its index, mixed. */
DEVICE void add_to_hash(Check &check, uint32_t bits, uint32_t index) {
    uint32_t mixed = bits ^ (index * 0x9e3779b1u);
    mixed = (mixed ^ (mixed >> 16)) * 0x85ebca6bu;
    mixed ^= mixed >> 13;
    check.hash_low += mixed;
    mixed *= 0xc2b2ae35u;
    check.hash_high += mixed ^ (mixed >> 16);
}

/* The checks of a block's threads, joined and written by its first thread. */
DEVICE void write_joined(Check own, uint32_t *checks) {
    SHARED_MATRIX(uint32_t, of_warp, MAX_WARPS, 4);
    const int32_t thread = (int32_t)threadIdx.x, warps = (int32_t)blockDim.x / WARP_SIZE;
    for (int step = WARP_SIZE / 2; step; step /= 2)
        own = joined(own, {__shfl_xor_sync(FULL_WARP, own.largest_gradient, step),
                           __shfl_xor_sync(FULL_WARP, own.largest_result, step),
                           __shfl_xor_sync(FULL_WARP, own.hash_low, step),
                           __shfl_xor_sync(FULL_WARP, own.hash_high, step)});
    if (thread % WARP_SIZE == 0) {
        of_warp[thread / WARP_SIZE][0] = own.largest_gradient, of_warp[thread / WARP_SIZE][1] = own.largest_result;
        of_warp[thread / WARP_SIZE][2] = own.hash_low, of_warp[thread / WARP_SIZE][3] = own.hash_high;
    }
    __syncthreads();
    if (thread) return;
    for (int32_t w = 1; w < warps; w++) own = joined(own, {of_warp[w][0], of_warp[w][1], of_warp[w][2], of_warp[w][3]});
    checks[4 * blockIdx.x] = own.largest_gradient, checks[4 * blockIdx.x + 1] = own.largest_result;
    checks[4 * blockIdx.x + 2] = own.hash_low, checks[4 * blockIdx.x + 3] = own.hash_high;
}

DEVICE int64_t first_of_thread() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }

DEVICE int64_t stride_of_grid() { return (int64_t)gridDim.x * blockDim.x; }

extern "C" __global__ void adam_step(float *weights, const float *gradient, const float *lr, const float *decay,
                                     float *mean, float *square, float mean_weight, float square_decay,
                                     float square_weight, float unbiased, float epsilon, float rate,
                                     const float *factors_of_step, int64_t num_weights, uint32_t *checks) {
    /* A launch that is replayed in a captured step reads here what changes from step to step. */
    if (factors_of_step) unbiased = factors_of_step[0], rate = factors_of_step[1];
    Check check = {0u, 0u, 0u, 0u};
    for (int64_t i = first_of_thread(); i < num_weights; i += stride_of_grid()) {
        const float slope = gradient[i] + decay[i] * weights[i];
        const float m = mean[i] + mean_weight * (slope - mean[i]);
        const float s = square[i] * square_decay + square_weight * slope * slope;
        const float w = weights[i] + rate * lr[i] * (m / (sqrtf(s) / unbiased + epsilon));
        mean[i] = m, square[i] = s, weights[i] = w;
        const uint32_t moments = larger(bits_of(m) & MAGNITUDE, bits_of(s) & MAGNITUDE);
        check.largest_result = larger(check.largest_result, larger(moments, bits_of(w) & MAGNITUDE));
        check.largest_gradient = larger(check.largest_gradient, bits_of(gradient[i]) & MAGNITUDE);
        add_to_hash(check, bits_of(w), static_cast<uint32_t>(i));
    }
    write_joined(check, checks);
}

/* The check of another optimizer's step, or of one that moved only some weights; mean and square may be NULL. */
extern "C" __global__ void check_buffers(const float *gradient, int64_t num_gradients, const float *weights,
                                         const float *mean, const float *square, int64_t num_weights,
                                         uint32_t *checks) {
    Check check = {0u, 0u, 0u, 0u};
    for (int64_t i = first_of_thread(); i < num_gradients; i += stride_of_grid())
        check.largest_gradient = larger(check.largest_gradient, bits_of(gradient[i]) & MAGNITUDE);
    for (int64_t i = first_of_thread(); i < num_weights; i += stride_of_grid()) {
        check.largest_result = larger(check.largest_result, bits_of(weights[i]) & MAGNITUDE);
        if (mean) check.largest_result = larger(check.largest_result, bits_of(mean[i]) & MAGNITUDE);
        if (square) check.largest_result = larger(check.largest_result, bits_of(square[i]) & MAGNITUDE);
        add_to_hash(check, bits_of(weights[i]), static_cast<uint32_t>(i));
    }
    write_joined(check, checks);
}

extern "C" __global__ void join_checks(const uint32_t *checks, int64_t num_checks, uint32_t *out) {
    Check check = {0u, 0u, 0u, 0u};
    for (int64_t i = threadIdx.x; i < num_checks; i += blockDim.x)
        check = joined(check, {checks[4 * i], checks[4 * i + 1], checks[4 * i + 2], checks[4 * i + 3]});
    write_joined(check, out);
}
