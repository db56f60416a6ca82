/* Kernels whose cost is known: what a warp asks for, in how many sectors, and in how many turns at the banks. */
#include "device.cuh"

extern "C" __global__ void copy_words(const float *in, float *out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i];
}

extern "C" __global__ void copy_quads(const float *in, float *out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    reinterpret_cast<float4 *>(out)[i] = reinterpret_cast<const float4 *>(in)[i];
}

/* Reads every `stride`th word. */
extern "C" __global__ void gather_words(const float *in, int32_t stride, float *out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i * stride];
}

extern "C" __global__ void read_one_word(const float *in, float *out) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = in[blockIdx.x];
}

/* A lane reads the word that lies `stride` words behind that of the lane before. */
extern "C" __global__ void take_turns(int32_t stride, float *out) {
    SHARED_ARRAY(float, words, 1024);
    for (int k = threadIdx.x; k < 1024; k += blockDim.x) words[k] = (float)k;
    __syncthreads();
    out[threadIdx.x] = words[threadIdx.x * stride % 1024];
}
