/* What a kernel sees of its launch: indices, the block's barrier, shared memory; and the launcher of a kernel. */
#ifndef HPCGNN_EXECUTION_H
#define HPCGNN_EXECUTION_H
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include "traffic.h"
#include "vector_types.h"

#define UNCHECKED __attribute__((no_sanitize("thread", "undefined")))

namespace emulation {
struct extent {
    const char *name; /* of the parameter */
    uintptr_t first, end;
    int32_t is_written;
};

struct launch {
    const char *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    uint64_t seed;
    const extent *extents;
    int32_t num_extents;
    traffic *counts; /* NULL: nothing is counted */
};

struct fault {
    char text[1024];
    uintptr_t place; /* in the kernel's machine code, from the library's start; 0: none */
};

uint3 thread_index();
uint3 block_index();
dim3 block_extent();
dim3 grid_extent();
int lane_number();

/* Storage of one shared array of the running block, for all of its threads; names are told apart by address. */
void *shared_array(const char *name, size_t bytes, size_t alignment);
void *dynamic_shared();

void wait_for_block(int line, int tally, int *sum);

/* Runs body(arguments) once a thread. Returns 0, or 1 with the fault. */
int run(const launch &launch, void (*body)(void *const *), void *const *arguments, fault *found);

template <auto kernel, typename... P, size_t... I>
UNCHECKED void call(void *const *arguments, void (*)(P...), std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<P> *>(arguments[I])...);
}

template <typename... P> constexpr size_t count(void (*)(P...)) { return sizeof...(P); }

template <auto kernel> UNCHECKED void body(void *const *arguments) {
    call<kernel>(arguments, kernel, std::make_index_sequence<count(kernel)>());
}
}

/* The entry of a kernel for the tests' loader. */
#define EMULATED_KERNEL(name)                                                                                       \
    extern "C" int emulate_##name(const emulation::launch *launch, void *const *arguments, emulation::fault *found) { \
        return emulation::run(*launch, emulation::body<name>, arguments, found);                                    \
    }

#define threadIdx (emulation::thread_index())
#define blockIdx (emulation::block_index())
#define blockDim (emulation::block_extent())
#define gridDim (emulation::grid_extent())
#define warpSize 32

#define SHARED_STORAGE(type, name)                                                                                  \
    static const char name##_site[] = #name;                                                                        \
    type &name = *static_cast<type *>(emulation::shared_array(name##_site, sizeof(type), alignof(type)))
#define SHARED_ARRAY(type, name, size)                                                                              \
    using name##_array = type[size];                                                                                \
    SHARED_STORAGE(name##_array, name)
#define SHARED_MATRIX(type, name, rows, columns)                                                                    \
    using name##_array = type[rows][columns];                                                                       \
    SHARED_STORAGE(name##_array, name)
#define DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(emulation::dynamic_shared())

/* The line of the call tells barriers apart. */
inline __attribute__((always_inline)) void __syncthreads(int line = __builtin_LINE()) {
    emulation::wait_for_block(line, 0, nullptr);
}
inline __attribute__((always_inline)) int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
    int sum;
    emulation::wait_for_block(line, predicate != 0, &sum);
    return sum;
}
inline __attribute__((always_inline)) int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
    return __syncthreads_count(predicate, line) != 0;
}
inline __attribute__((always_inline)) int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
    return __syncthreads_count(predicate == 0, line) == 0;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
#endif
