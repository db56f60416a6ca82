/* Atomic updates of flags and counters; sums of floats are left out, since their order would show. */
#ifndef HPCGNN_ATOMICS_H
#define HPCGNN_ATOMICS_H
#include <type_traits>
#include "execution.h"

namespace emulation {
void access_atomically(const void *address, size_t bytes);
}

#define ATOMIC(name, expression)                                                                                    \
    template <typename T>                                                                                           \
    __attribute__((noinline)) UNCHECKED T atomic##name(T *address, std::common_type_t<T> value) {                   \
        static_assert(std::is_integral_v<T>, "results would depend on the order of blocks");                        \
        emulation::access_atomically(address, sizeof(T));                                                           \
        const T old = *address;                                                                                     \
        *address = (expression);                                                                                    \
        return old;                                                                                                 \
    }
ATOMIC(Add, static_cast<T>(old + value))
ATOMIC(Or, static_cast<T>(old | value))
ATOMIC(And, static_cast<T>(old & value))
ATOMIC(Max, value > old ? value : old)
ATOMIC(Min, value < old ? value : old)
ATOMIC(Exch, value)
#undef ATOMIC
#endif
