/* CUDA C++ for a host compiler, as far as kernels of hpcgnn need it: keywords, types, functions, the launch.
 *
 * Kernels include it through device.cuh. Threads of a block are fibres, a warp waits at its primitives until all lanes
 * of the mask are there; memory accesses are seen through the hooks that -fsanitize=thread makes the compiler emit. */
#ifndef HPCGNN_CUDA_EMULATION_H
#define HPCGNN_CUDA_EMULATION_H
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __shared__ static_assert(false, "shared memory is declared by SHARED_ARRAY, SHARED_MATRIX or DYNAMIC_SHARED")

#include "vector_types.h"
#include "narrow_floats.h"
#include "execution.h"
#include "warp_primitives.h"
#include "atomics.h"
#include "intrinsics.h"
#include "bit_mma.h"
#endif
