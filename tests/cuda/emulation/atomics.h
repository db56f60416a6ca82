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

/* Of two floats at once, for benchmarks alone. */
template <typename Pair> __attribute__((noinline)) UNCHECKED void add_in_any_order(Pair *place, Pair value) {
    emulation::access_atomically(place, sizeof(Pair));
    /* Words cross here: the members of a pair would be read by code that is checked. */
    constexpr size_t NUM_WORDS = sizeof(Pair) / sizeof(uint32_t);
    uint32_t words[NUM_WORDS];
    for (size_t w = 0; w < NUM_WORDS; w++) words[w] = reinterpret_cast<const uint32_t *>(place)[w];
    Pair sum;
    __builtin_memcpy(&sum, words, sizeof(Pair));
    sum.x = sum.x + value.x;
    sum.y = sum.y + value.y;
    __builtin_memcpy(words, &sum, sizeof(Pair));
    for (size_t w = 0; w < NUM_WORDS; w++) reinterpret_cast<uint32_t *>(place)[w] = words[w];
}
#endif
