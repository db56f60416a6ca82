/* Primitives of a warp: each lane brings words, waits for the lanes of its mask, and reads theirs. */
#ifndef HPCGNN_WARP_PRIMITIVES_H
#define HPCGNN_WARP_PRIMITIVES_H
#include <cstring>
#include <type_traits>
#include "execution.h"

/* Inlined, so that the place of a fault is the kernel's. */
#define PRIMITIVE inline __attribute__((always_inline))
#define AT_LINE int line = __builtin_LINE()

namespace emulation {
constexpr int LANE_WORDS = 6;

/* What the lanes of a mask brought, by lane; valid until this thread's next primitive. */
struct brought {
    uint32_t words[32][LANE_WORDS];
};

enum primitive { SHFL, BALLOT, ANY, ALL, SYNCWARP, MATCH, MMA };

/* Waits until all lanes of the mask are at this primitive, on this line. */
const brought &meet(primitive which, uint32_t mask, int line, const uint32_t *words, int num_words);

/* Faults where `lane` is none of the mask: what it holds is undefined. */
void read_lane(uint32_t mask, int lane);

template <typename T> PRIMITIVE T exchange(uint32_t mask, T value, int source, int line) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    uint32_t words[2] = {0, 0};
    std::memcpy(words, &value, sizeof value);
    const brought &all = meet(SHFL, mask, line, words, 2);
    read_lane(mask, source);
    std::memcpy(static_cast<void *>(&value), all.words[source], sizeof value);
    return value;
}

PRIMITIVE uint32_t ballot(primitive which, uint32_t mask, bool predicate, int line) {
    const uint32_t word = predicate;
    const brought &all = meet(which, mask, line, &word, 1);
    uint32_t votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1u) votes |= all.words[lane][0] << lane;
    return votes;
}
}

template <typename T> PRIMITIVE T __shfl_sync(uint32_t mask, T value, int source, int width = 32, AT_LINE) {
    const int lane = emulation::lane_number();
    return emulation::exchange(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), line);
}
template <typename T> PRIMITIVE T __shfl_xor_sync(uint32_t mask, T value, int pattern, int width = 32, AT_LINE) {
    const int lane = emulation::lane_number(), source = lane ^ pattern;
    return emulation::exchange(mask, value, (source & ~(width - 1)) <= (lane & ~(width - 1)) ? source : lane, line);
}
template <typename T> PRIMITIVE T __shfl_up_sync(uint32_t mask, T value, int delta, int width = 32, AT_LINE) {
    const int lane = emulation::lane_number(), source = lane - delta;
    return emulation::exchange(mask, value, source >= (lane & ~(width - 1)) ? source : lane, line);
}
template <typename T> PRIMITIVE T __shfl_down_sync(uint32_t mask, T value, int delta, int width = 32, AT_LINE) {
    const int lane = emulation::lane_number(), source = lane + delta;
    return emulation::exchange(mask, value, source <= (lane | (width - 1)) ? source : lane, line);
}
PRIMITIVE uint32_t __ballot_sync(uint32_t mask, bool predicate, AT_LINE) {
    return emulation::ballot(emulation::BALLOT, mask, predicate, line);
}
PRIMITIVE int __any_sync(uint32_t mask, bool predicate, AT_LINE) {
    return emulation::ballot(emulation::ANY, mask, predicate, line) != 0;
}
PRIMITIVE int __all_sync(uint32_t mask, bool predicate, AT_LINE) {
    return emulation::ballot(emulation::ALL, mask, predicate, line) == mask;
}
PRIMITIVE void __syncwarp(uint32_t mask = 0xffffffffu, AT_LINE) {
    emulation::meet(emulation::SYNCWARP, mask, line, nullptr, 0);
}
/* Lanes of the mask that brought the same value. */
template <typename T> PRIMITIVE uint32_t __match_any_sync(uint32_t mask, T value, AT_LINE) {
    uint32_t words[2] = {0, 0}, same = 0;
    std::memcpy(words, &value, sizeof value);
    const emulation::brought &all = emulation::meet(emulation::MATCH, mask, line, words, 2);
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1u) && all.words[lane][0] == words[0] && all.words[lane][1] == words[1]) same |= 1u << lane;
    return same;
}
#endif
