/* Kernels with one planted fault of memory each; the comment FAULT marks the line that is named. */
#include "device.cuh"

extern "C" __global__ void race_in_shared_memory(const int *in, int *out) {
    SHARED_ARRAY(int, kept, 64);
    kept[threadIdx.x] = 0;
    __syncthreads();
    kept[threadIdx.x] = in[threadIdx.x]; /* FAULT race_in_shared_memory */
    out[threadIdx.x] = kept[63 - threadIdx.x]; /* FAULT race_in_shared_memory */
}

/* A shuffle orders no memory, only __syncwarp does. */
extern "C" __global__ void race_in_a_warp(const int *in, int *out) {
    SHARED_ARRAY(int, kept, 32);
    kept[threadIdx.x] = in[threadIdx.x];
    const int neighbor = __shfl_xor_sync(FULL_WARP, static_cast<int>(threadIdx.x), 1);
    out[threadIdx.x] = kept[neighbor]; /* FAULT race_in_a_warp */
}

/* The tile is written again while slower threads still read it: one barrier is missing. */
extern "C" __global__ void race_with_the_next_round(const int *in, int *out) {
    SHARED_ARRAY(int, kept, 64);
    int sum = 0;
    for (int round = 0; round < 2; round++) {
        kept[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        sum += kept[63 - threadIdx.x]; /* FAULT race_with_the_next_round */
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void race_between_blocks(int *out) {
    out[threadIdx.x] = static_cast<int>(blockIdx.x); /* FAULT race_between_blocks */
}

extern "C" __global__ void sum_without_atomics(const int *in, int *out) {
    *out += in[threadIdx.x]; /* FAULT sum_without_atomics */
}

/* Right for one thread an element; a grid of one block too many leaves the tensors. */
extern "C" __global__ void copy_unguarded(const float *in, float *out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i]; /* FAULT copy_unguarded */
}

extern "C" __global__ void copy_shifted(const float *in, float *out, int num) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= num) out[i] = 1.0f + in[0]; /* FAULT copy_shifted */
}

extern "C" __global__ void read_before_the_first(const __nv_bfloat16 *in, float *out) {
    const __nv_bfloat16 *row = in + static_cast<int>(threadIdx.x) - 1;
    out[threadIdx.x] = to_f32(*row); /* FAULT read_before_the_first */
}

extern "C" __global__ void write_a_constant(const float *in) {
    const_cast<float *>(in)[threadIdx.x] = 0.0f; /* FAULT write_a_constant */
}

extern "C" __global__ void leave_a_shared_array(const int *in, int *out) {
    SHARED_ARRAY(int, kept, 32);
    int *const end = kept + in[0];
    end[threadIdx.x] = in[threadIdx.x]; /* FAULT leave_a_shared_array */
    out[threadIdx.x] = end[threadIdx.x];
}

extern "C" __global__ void leave_dynamic_memory(const int *in, int *out) {
    DYNAMIC_SHARED(int, kept);
    kept[threadIdx.x] = in[threadIdx.x]; /* FAULT leave_dynamic_memory */
    out[threadIdx.x] = kept[threadIdx.x];
}

extern "C" __global__ void read_what_no_thread_wrote(int *out) {
    SHARED_ARRAY(int, kept, 64);
    if (threadIdx.x < 32) kept[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = kept[threadIdx.x]; /* FAULT read_what_no_thread_wrote */
}

extern "C" __global__ void load_four_misaligned(const float *in, float *out) {
    const float4 x = *reinterpret_cast<const float4 *>(in + 1); /* FAULT load_four_misaligned */
    out[threadIdx.x] = x.x + x.y + x.z + x.w;
}
