/* Kernels whose threads miss each other at a barrier or a primitive; the comment FAULT marks the line that is named. */
#include "device.cuh"

extern "C" __global__ void barrier_in_a_branch(int *out) {
    if (threadIdx.x < 40) __syncthreads(); /* FAULT barrier_in_a_branch */
    out[threadIdx.x] = 1;
}

extern "C" __global__ void barrier_on_two_lines(int *out) {
    if (threadIdx.x < 32) {
        __syncthreads(); /* FAULT barrier_on_two_lines */
        out[threadIdx.x] = 1;
    } else {
        __syncthreads();
        out[threadIdx.x] = 2;
    }
}

extern "C" __global__ void barrier_after_a_return(int *out, int num) {
    if (static_cast<int>(threadIdx.x) >= num) return;
    __syncthreads(); /* FAULT barrier_after_a_return */
    out[threadIdx.x] = 1;
}

extern "C" __global__ void shuffle_after_a_return(int *out, int num) {
    if (static_cast<int>(threadIdx.x) >= num) return;
    out[threadIdx.x] = __shfl_down_sync(FULL_WARP, num, 1); /* FAULT shuffle_after_a_return */
}

extern "C" __global__ void shuffle_against_a_vote(int *out) {
    if (threadIdx.x % 32 < 16)
        out[threadIdx.x] = __shfl_xor_sync(FULL_WARP, 1, 1); /* FAULT shuffle_against_a_vote */
    else
        out[threadIdx.x] = __any_sync(FULL_WARP, true);
}

extern "C" __global__ void shuffle_against_a_barrier(int *out) {
    if (threadIdx.x == 7)
        __syncthreads();
    else
        out[threadIdx.x] = __shfl_xor_sync(FULL_WARP, 1, 1); /* FAULT shuffle_against_a_barrier */
}

extern "C" __global__ void shuffle_of_two_masks(int *out) {
    const uint32_t mask = threadIdx.x % 32 < 16 ? FULL_WARP : 0xffff8000u;
    out[threadIdx.x] = __shfl_xor_sync(mask, 1, 1); /* FAULT shuffle_of_two_masks */
}

extern "C" __global__ void shuffle_outside_of_its_mask(int *out) {
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20); /* FAULT shuffle_outside_of_its_mask */
}

extern "C" __global__ void shuffle_without_itself(int *out) {
    out[threadIdx.x] = __shfl_sync(0xffffu, 1, 0); /* FAULT shuffle_without_itself */
}

extern "C" __global__ void shuffle_with_half_a_warp(int *out) {
    out[threadIdx.x] = __shfl_sync(FULL_WARP, 1, 0); /* FAULT shuffle_with_half_a_warp */
}
