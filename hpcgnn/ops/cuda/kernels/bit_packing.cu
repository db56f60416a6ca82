/* Matrices of codes or of values to planes of bits and back.
 *
 * Maths: bit k % 32 of word k / 32 of plane p of a line is bit p of the line's code number k (QGTC, Section 4.2);
 * codes of values are floor((value - low) / step + offset), clamped.
 * Threads: a warp has 32 neighboring columns. If lines are rows, these are one word of every plane, made by a vote of
 * the warp; if lines are columns, each lane gathers a word of every plane from 32 rows. Either way the matrix is read
 * in whole lines of memory. To unpack, a warp takes one word of every plane; to sum, it takes one line.
 * Determinism: integers; every word and every code has one thread that writes it. */
#include "bit_codes.cuh"

/* A warp's number in the grid. */
DEVICE int64_t warp_number() {
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE;
}

struct CodeSource {
    const uint8_t *codes;
    DEVICE uint32_t code(int64_t position, int64_t line) const { return codes[position]; }
};

struct ValueSource {
    const float *values, *low, *step;
    int32_t is_per_line;
    float offset, largest;
    DEVICE uint32_t code(int64_t position, int64_t line) const {
        const int64_t number = is_per_line ? line : 0;
        return code_of(values[position], low[number], step[number], offset, largest);
    }
};

struct Planes {
    uint32_t *words;
    int32_t num_planes;
    int64_t num_padded, line_words;
};

/* A warp: word w of every plane of one row. */
template <typename Source>
DEVICE void pack_row(const Source &source, int64_t num_rows, int64_t num_columns, const Planes &planes) {
    const int64_t row_words = (num_columns + 31) / 32, number = warp_number();
    const int64_t row = number / row_words, word = number % row_words;
    if (row >= num_rows) return;
    const int64_t column = 32 * word + lane_number();
    const uint32_t code = column < num_columns ? source.code(row * num_columns + column, row) : 0;
    store_planes(code, planes.num_planes, planes.words + row * planes.line_words + word,
                 planes.num_padded * planes.line_words);
}

/* A lane: word w of every plane of one column. */
template <typename Source>
DEVICE void pack_column(const Source &source, int64_t num_rows, int64_t num_columns, const Planes &planes) {
    const int64_t num_groups = (num_columns + 31) / 32, number = warp_number();
    const int64_t column = 32 * (number % num_groups) + threadIdx.x % WARP_SIZE, word = number / num_groups;
    if (column >= num_columns || 32 * word >= num_rows) return;
    uint32_t own[LARGEST_BIT_WIDTH] = {0};
    for (int32_t k = 0; k < 32 && 32 * word + k < num_rows; k++) {
        const uint32_t code = source.code((32 * word + k) * num_columns + column, column);
        for (int32_t p = 0; p < LARGEST_BIT_WIDTH; p++) own[p] |= (code >> p & 1u) << k;
    }
    for (int32_t p = 0; p < LARGEST_BIT_WIDTH; p++)
        if (p < planes.num_planes) planes.words[(p * planes.num_padded + column) * planes.line_words + word] = own[p];
}

#define PACK_CODES(name, pack) \
    extern "C" __global__ void name(const uint8_t *codes, int64_t num_rows, int64_t num_columns, uint32_t *words, \
                                    int32_t num_planes, int64_t num_padded, int64_t line_words) { \
        pack(CodeSource{codes}, num_rows, num_columns, Planes{words, num_planes, num_padded, line_words}); \
    }
#define PACK_VALUES(name, pack) \
    extern "C" __global__ void name(const float *values, const float *low, const float *step, int32_t is_per_line, \
                                    float offset, int64_t num_rows, int64_t num_columns, uint32_t *words, \
                                    int32_t num_planes, int64_t num_padded, int64_t line_words) { \
        const float largest = (float)((1 << num_planes) - 1); \
        pack(ValueSource{values, low, step, is_per_line, offset, largest}, num_rows, num_columns, \
             Planes{words, num_planes, num_padded, line_words}); \
    }
PACK_CODES(pack_codes_of_rows, pack_row)
PACK_CODES(pack_codes_of_columns, pack_column)
PACK_VALUES(pack_values_of_rows, pack_row)
PACK_VALUES(pack_values_of_columns, pack_column)

extern "C" __global__ void unpack_codes(const uint32_t *words, int32_t num_planes, int64_t num_padded,
                                        int64_t line_words, int64_t num_lines, int64_t length, uint8_t *codes) {
    const int64_t used_words = (length + 31) / 32, number = warp_number();
    const int64_t line = number / used_words, word = number % used_words, lane = lane_number();
    if (line >= num_lines || 32 * word + lane >= length) return;
    uint32_t code = 0;
    for (int32_t p = 0; p < num_planes; p++)
        code |= (words[(p * num_padded + line) * line_words + word] >> lane & 1u) << p;
    codes[line * length + 32 * word + lane] = (uint8_t)code;
}

extern "C" __global__ void sum_codes(const uint32_t *words, int32_t num_planes, int64_t num_padded, int64_t line_words,
                                     int64_t num_lines, int64_t *sums) {
    const int64_t line = warp_number();
    if (line >= num_lines) return;
    const int32_t lane = lane_number();
    long long sum = 0;
    for (int32_t p = 0; p < num_planes; p++)
        for (int64_t w = lane; w < line_words; w += WARP_SIZE)
            sum += (long long)__popc(words[(p * num_padded + line) * line_words + w]) << p;
    for (int32_t distance = WARP_SIZE / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    if (lane == 0) sums[line] = sum;
}
