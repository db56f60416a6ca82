/* Rows of any storage <-> bytes of one message, gathered and scattered by row index. Wire: ext/src/quantization.h.
 *
 * Maths     value ~ zero_point + step * code, code = floor((x - zero_point) / step + u), clamped to [0, 2^b - 1];
 *           u = (draw + 1/2) / 2^16 of the column, or 1/2 to the nearest. 16 and 32 bits: message_rows.cuh. Rotated
 *           rows: rotation.cu.
 * Threads   a row is taken by `width` neighboring lanes of a warp, a power of two up to 32, so that a narrow row leaves
 *           no lane idle. A lane takes 8 columns at a time: their draws are one Philox block, their codes b bytes.
 *           Parameters to the nearest are sums over 16 lanes. A row is read for its range, to the nearest once or
 *           twice for its sums, and to be coded: from memory once, then from the cache.
 * Results   equal the host's to the bit: the same operations in the same order (row_scale.cuh), no sum across rows. The
 *           only atomic is the least position of a row that can't be coded.
 *
 * Reference: AdaQP, Eq. (4)-(5); SYLVIE, Eq. (3); deviations: ops/quantization.py. */
#include "message_rows.cuh"

template <typename T, bool is_nearest>
DEVICE row_scale affine_scale(const T *row, int64_t dim, int bit_width, row_range range, row_lanes lanes) {
    if (!is_nearest) return scale_of_range(range.low, range.high, bit_width);
    if (bit_width == 8) return scale_of_range(range.low, range.high + 0.0f, 8); /* the step of a row of -0 is +0 */
    const row_summary summary = summary_of(row, dim, range.low, range.high, lanes);
    if (bit_width == 1) return centroid_scale(row, dim, summary, lanes);
    return fitted_scale(row, dim, bit_width, summary, lanes);
}

template <bool is_nearest, bool is_tiny> DEVICE uint32_t code_of(float x, row_scale scale, float top, uint32_t draw) {
    const float noise = is_nearest ? 0.5f : __fmul_rn(static_cast<float>(draw) + 0.5f, 0x1p-16f);
    const float distance = x - scale.zero_point;
    float code = (is_tiny ? __fdiv_rn(distance, scale.step) : __fmul_rn(distance, scale.inverse)) + noise;
    if (is_nearest) code = code > 0.0f ? code : 0.0f; /* may be below code 0 */
    return static_cast<uint32_t>(code < top ? code : top);
}

/* A group of codes as b bytes. A step with too large a reciprocal divides, which costs more than all the rest. */
template <bool is_nearest, bool is_tiny>
DEVICE void code_group(const uint32_t (&bits)[GROUP], int num, int bit_width, row_scale scale, uint4 draws,
                       uint8_t *out) {
    const float top = static_cast<float>((1 << bit_width) - 1);
    uint32_t words[2] = {0, 0}; /* of four codes each, the last one first */
#pragma unroll
    for (int i = GROUP - 1; i >= 0; i--) {
        const float x = i < num ? __uint_as_float(bits[i]) : scale.zero_point; /* its code is 0 */
        words[i / 4] = words[i / 4] << bit_width |
                       code_of<is_nearest, is_tiny>(x, scale, top, philox_draw(draws, i));
    }
    if (bit_width < 8) words[0] |= words[1] << 4 * bit_width, words[1] = 0;
    store_bytes(out, (num * bit_width + 7) / 8, words);
}

template <typename T, bool is_nearest>
DEVICE void quantize_row(const T *rows, message_rows m, int64_t i, counter_key key, row_lanes lanes, uint8_t *message,
                         int32_t *first_bad) {
    const T *row = rows + m.row_index[i] * m.dim;
    const int bit_width = m.bit_width[i];
    if (bit_width > 8) {
        send_wide_row<T, is_nearest>(row, m, i, key, lanes, message);
        return;
    }
    const row_range range = range_of(row, m.dim, lanes);
    if (!range.is_valid) {
        if (lanes.lane == 0) atomicMin(first_bad, static_cast<int32_t>(i));
        return;
    }
    const row_scale scale = affine_scale<T, is_nearest>(row, m.dim, bit_width, range, lanes);
    const uint32_t parameters[1] = {scale.parameters};
    if (lanes.lane == 0) store_bytes(message + m.parameter_offset[i], 4, parameters);
    uint8_t *payload = message + m.payload_offset[i];
    for (int64_t j = first_group(lanes); j < m.dim; j += lanes.width * GROUP) {
        const int num = num_in_group(m.dim, j);
        const uint4 draws = is_nearest ? make_uint4(0, 0, 0, 0)
                                       : philox_block(key, m.node_id[i], static_cast<uint32_t>(j / PHILOX_DRAWS));
        uint32_t bits[GROUP];
        load_group(row, j, num, bits);
        uint8_t *const out = payload + j / GROUP * bit_width;
        if (scale.is_tiny)
            code_group<is_nearest, true>(bits, num, bit_width, scale, draws, out);
        else
            code_group<is_nearest, false>(bits, num, bit_width, scale, draws, out);
    }
}

/* Values of a group of codes: zero_point + step * code, each operation rounded. */
DEVICE void decode_group(const uint8_t *in, int num, int bit_width, float zero_point, float step,
                         uint32_t (&bits)[GROUP]) {
    uint32_t words[2];
    load_bytes(in, (num * bit_width + 7) / 8, words);
    if (bit_width < 8) words[1] = words[0] >> 4 * bit_width;
    const uint32_t top = (1u << bit_width) - 1u;
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        bits[i] = __float_as_uint(zero_point + __fmul_rn(step, static_cast<float>(words[i / 4] & top)));
        words[i / 4] >>= bit_width;
    }
}

template <typename T>
DEVICE void dequantize_row(const uint8_t *message, message_rows m, int64_t i, row_lanes lanes, int is_accumulated,
                           T *rows) {
    T *row = rows + m.row_index[i] * m.dim;
    const int bit_width = m.bit_width[i];
    if (bit_width > 8) {
        receive_wide_row(message, m, i, lanes, is_accumulated, row);
        return;
    }
    uint32_t parameters[1];
    load_bytes(message + m.parameter_offset[i], 4, parameters);
    const float zero_point = bf16_value(parameters[0] & 0xffffu), step = bf16_value(parameters[0] >> 16);
    for (int64_t j = first_group(lanes); j < m.dim; j += lanes.width * GROUP) {
        const int num = num_in_group(m.dim, j);
        uint32_t bits[GROUP];
        decode_group(message + m.payload_offset[i] + j / GROUP * bit_width, num, bit_width, zero_point, step, bits);
        put_group(row, j, num, is_accumulated, bits);
    }
}

#define QUANTIZE(T, name, is_nearest)                                                                               \
    extern "C" __global__ void __launch_bounds__(256) name(                                                         \
        const T *rows, const int32_t *row_index, const int64_t *node_id, const uint8_t *bit_width,                  \
        const int64_t *payload_offset, const int64_t *parameter_offset, int64_t num_rows, int64_t dim, int width,   \
        uint32_t seed, uint32_t epoch, uint32_t stream, uint8_t *message, int32_t *first_bad) {                     \
        const int64_t i = row_of_lane(width);                                                                       \
        if (i >= num_rows) return;                                                                                  \
        const message_rows m = {row_index, node_id, bit_width, payload_offset, parameter_offset, dim};              \
        quantize_row<T, is_nearest>(rows, m, i, {seed, epoch, stream}, lanes_of_row(width), message, first_bad);    \
    }

#define QUANTIZATION_KERNELS(T, suffix)                                                                             \
    QUANTIZE(T, quantize_##suffix, false)                                                                           \
    QUANTIZE(T, quantize_nearest_##suffix, true)                                                                    \
    extern "C" __global__ void __launch_bounds__(256) dequantize_##suffix(                                          \
        const uint8_t *message, const int32_t *row_index, const uint8_t *bit_width, const int64_t *payload_offset,  \
        const int64_t *parameter_offset, int64_t num_rows, int64_t dim, int width, int is_accumulated, T *rows) {   \
        const int64_t i = row_of_lane(width);                                                                       \
        if (i >= num_rows) return;                                                                                  \
        const message_rows m = {row_index, nullptr, bit_width, payload_offset, parameter_offset, dim};              \
        dequantize_row(message, m, i, lanes_of_row(width), is_accumulated, rows);                                   \
    }

FOR_EACH_STORAGE(QUANTIZATION_KERNELS)
