/* What every kernel includes: fixed-width integers, element types and their conversions, warps, shared memory.
 *
 * The one file that knows who compiles it: NVRTC, nvcc, or a host compiler with HPCGNN_EMULATED, for which
 * tests/cuda/emulation/cuda_emulation.h stands for CUDA. Kernels see no difference.
 *
 * Arithmetic is float32, whatever the storage. Conversions to float32 are exact, from float32 to nearest even. */
#ifndef HPCGNN_DEVICE_CUH
#define HPCGNN_DEVICE_CUH

#ifdef HPCGNN_EMULATED
#include "cuda_emulation.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#else
#include <stdint.h>
#endif

/* An uninitialized array in a block's shared memory; `name` is a true array, in function templates too. */
#define SHARED_ARRAY(type, name, size) __shared__ type name[size]
#define SHARED_MATRIX(type, name, rows, columns) __shared__ type name[rows][columns]

/* A pointer, aligned to 16 bytes, to the launch's shared_bytes; all dynamic arrays of a kernel lie in them. */
extern __shared__ __align__(16) unsigned char hpcgnn_dynamic_shared[];
#define DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(hpcgnn_dynamic_shared)
#endif

#define DEVICE __device__ __forceinline__

/* Makes one kernel per storage: applies the macro MAKE to each element type and the suffix of its kernel's name. */
#define FOR_EACH_STORAGE(MAKE) MAKE(float, f32) MAKE(__nv_bfloat16, bf16) MAKE(__half, f16)

constexpr int WARP_SIZE = 32;
constexpr uint32_t FULL_WARP = 0xffffffffu;

DEVICE float positive_infinity() { return __int_as_float(0x7f800000); }
DEVICE float negative_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

DEVICE float to_f32(float x) { return x; }
DEVICE float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
DEVICE float to_f32(__half x) { return __half2float(x); }

template <typename T> DEVICE T from_f32(float x);
template <> DEVICE float from_f32<float>(float x) { return x; }
template <> DEVICE __nv_bfloat16 from_f32<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> DEVICE __half from_f32<__half>(float x) { return __float2half_rn(x); }

/* Element j of a row of any storage. */
template <typename T> DEVICE float load_f32(const T *row, int64_t j) { return to_f32(row[j]); }
template <typename T> DEVICE void store_f32(T *row, int64_t j, float x) { row[j] = from_f32<T>(x); }

/* Sum, least and largest of `width` neighboring lanes (a power of two), in one order; every lane gets the result. */
DEVICE float sum_of_lanes(float x, int width, uint32_t mask = FULL_WARP) {
    for (int step = width / 2; step; step /= 2) x += __shfl_xor_sync(mask, x, step, width);
    return x;
}
DEVICE float least_of_lanes(float x, int width, uint32_t mask = FULL_WARP) {
    for (int step = width / 2; step; step /= 2) x = fminf(x, __shfl_xor_sync(mask, x, step, width));
    return x;
}
DEVICE float largest_of_lanes(float x, int width, uint32_t mask = FULL_WARP) {
    for (int step = width / 2; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(mask, x, step, width));
    return x;
}

#ifndef HPCGNN_EMULATED
#include "bit_mma.cuh"

/* Atomic, so the sum depends on the order of threads; only benchmarks use it. */
DEVICE void add_in_any_order(float2 *place, float2 x) {
    atomicAdd(&place->x, x.x);
    atomicAdd(&place->y, x.y);
}
DEVICE void add_in_any_order(__half2 *place, __half2 x) { atomicAdd(place, x); }
#endif
#endif
