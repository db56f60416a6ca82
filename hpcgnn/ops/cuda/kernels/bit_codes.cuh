/* Codes of values, and a warp's 32 codes as one word of every plane; ext/src/bit_gemm.h has the layout of lines. */
#ifndef HPCGNN_BIT_CODES_CUH
#define HPCGNN_BIT_CODES_CUH
#include "device.cuh"

#define STEP_WORDS 4 /* 128 bits of a line */
#define LARGEST_BIT_WIDTH 8

/* Blocks have one dimension here. */
DEVICE int32_t lane_number() { return (int32_t)threadIdx.x % WARP_SIZE; }

/* Planes of lines of codes, (num_planes, num_lines, STEP_WORDS * num_steps); zeros outside. */
struct Lines {
    const uint32_t *words;
    int64_t num_lines, num_steps;
    int32_t num_planes;

    DEVICE uint32_t word(int32_t plane, int64_t line, int64_t step, int32_t w) const {
        if (line >= num_lines || step >= num_steps) return 0;
        return words[((plane * num_lines + line) * num_steps + step) * STEP_WORDS + w];
    }
};

/* floor((value - low) / step + offset), clamped to [0, largest]; each operation rounds alone, as on the host. */
DEVICE uint32_t code_of(float value, float low, float step, float offset, float largest) {
    float code = __fadd_rn(__fdiv_rn(__fsub_rn(value, low), step), offset);
    code = code > 0.0f ? code : 0.0f; /* NaN too */
    code = code < largest ? code : largest;
    return (uint32_t)(int32_t)code;
}

/* All lanes of a warp: lane k holds code number k of 32. The word of plane p goes to words[p * plane_words]. The votes
 * are the words, and lane p keeps the one that it stores. */
DEVICE void store_planes(uint32_t code, int32_t num_planes, uint32_t *words, int64_t plane_words) {
    const int32_t lane = lane_number();
    uint32_t own = 0;
    for (int32_t p = 0; p < num_planes; p++) {
        const uint32_t word = __ballot_sync(FULL_WARP, (int)(code >> p & 1));
        if (lane == p) own = word;
    }
    if (lane < num_planes) words[lane * plane_words] = own;
}
#endif
