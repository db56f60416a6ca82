/* Rows of any storage <-> bytes of one message, gathered and scattered by row index. Wire: ext/src/quantization.h.
 *
 * Maths     value ~ zero_point + step * code, code = floor((x - zero_point) / step + u), clamped to [0, 2^b - 1];
 *           u = (draw + 1/2) / 2^16 of the column, or 1/2 to the nearest. 16 bits: bfloat16, rounded by draws or to the
 *           nearest, or the row's own 16 bits; 32 bits: float32.
 * Threads   a row is taken by `width` neighboring lanes of a warp, a power of two up to 32, so that a narrow row leaves
 *           no lane idle. A lane takes 8 columns at a time: their draws are one Philox block, their codes b bytes.
 *           Parameters to the nearest are sums over 16 lanes. A row is read for its range, to the nearest once or
 *           twice for its sums, and to be coded: from memory once, then from the cache.
 * Results   equal the host's to the bit: the same operations in the same order (row_scale.cuh), no sum across rows. The
 *           only atomic is the least position of a row that can't be coded.
 *
 * Reference: AdaQP, Eq. (4)-(5); SYLVIE, Eq. (3); deviations: ops/quantization.py. */
#include "philox.cuh"
#include "row_scale.cuh"

/* One message: where each row comes from or goes to, and how wide it is. */
struct message_rows {
    const int32_t *row_index;
    const int64_t *node_id;
    const uint8_t *bit_width;
    const int64_t *payload_offset, *parameter_offset;
    int64_t dim;
};

/* Number of the row in the message that this lane works on. */
DEVICE int64_t row_of_lane(int width) {
    return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / width;
}

template <typename T, bool is_nearest>
DEVICE row_scale affine_scale(const T *row, int64_t dim, int bit_width, row_range range, row_lanes lanes) {
    if (!is_nearest) return scale_of_range(range.low, range.high, bit_width);
    if (bit_width == 8) return scale_of_range(range.low, range.high + 0.0f, 8); /* the step of a row of -0 is +0 */
    const row_summary summary = summary_of(row, dim, range.low, range.high, lanes);
    if (bit_width == 1) return centroid_scale(row, dim, summary, lanes);
    return fitted_scale(row, dim, bit_width, summary, lanes);
}

template <bool is_nearest> DEVICE uint32_t code_of(float x, row_scale scale, float top, uint32_t draw) {
    const float noise = is_nearest ? 0.5f : __fmul_rn(static_cast<float>(draw) + 0.5f, 0x1p-16f);
    const float distance = x - scale.zero_point;
    float code = (scale.is_tiny ? __fdiv_rn(distance, scale.step) : __fmul_rn(distance, scale.inverse)) + noise;
    if (is_nearest) code = code > 0.0f ? code : 0.0f; /* may be below code 0 */
    return static_cast<uint32_t>(code < top ? code : top);
}

/* A group of codes as b bytes. */
template <bool is_nearest>
DEVICE void code_group(const uint32_t (&bits)[GROUP], int num, int bit_width, row_scale scale, uint4 draws,
                       uint8_t *out) {
    const float top = static_cast<float>((1 << bit_width) - 1);
    uint64_t codes = 0;
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        if (i < num) {
            const uint64_t code = code_of<is_nearest>(__uint_as_float(bits[i]), scale, top, philox_draw(draws, i));
            codes |= code << i * bit_width;
        }
    const uint32_t words[2] = {static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32)};
    store_bytes(out, (num * bit_width + 7) / 8, words);
}

/* float32 to bfloat16: adding the draw below the cut carries with probability equal to the fraction dropped. Infinity
 * and NaN have no fraction to round, and the largest finite values are kept from carrying into infinity. */
DEVICE void round_group(uint32_t (&bits)[GROUP], uint4 draws) {
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        if ((bits[i] & 0x7fffffffu) < 0x7f7f0000u) bits[i] += philox_draw(draws, i);
        bits[i] &= 0xffff0000u;
    }
}

/* The upper halves of eight floats, as bfloat16 has them. */
DEVICE void store_upper_halves(const uint32_t (&bits)[GROUP], int num, uint8_t *out) {
    uint32_t words[GROUP / 2];
#pragma unroll
    for (int i = 0; i < GROUP; i += 2) words[i / 2] = bits[i] >> 16 | (bits[i + 1] & 0xffff0000u);
    store_bytes(out, 2 * num, words);
}

/* Columns j .. j+num-1 at 16 or 32 bits. */
template <typename T, bool is_nearest>
DEVICE void send_wide_group(const T *row, int64_t j, int num, int bit_width, uint4 draws, uint8_t *out) {
    if (bit_width == 16 && sizeof(T) == 2) {
        uint32_t words[GROUP_WORDS<T>];
        load_words(row + j, num, words);
        store_bytes(out, 2 * num, words);
        return;
    }
    uint32_t bits[GROUP];
    load_group(row, j, num, bits);
    if (bit_width == 32) {
        store_bytes(out, 4 * num, bits);
    } else if (is_nearest) {
        uint32_t words[GROUP / 2];
        narrow_words<__nv_bfloat16>(bits, words);
        store_bytes(out, 2 * num, words);
    } else {
        round_group(bits, draws);
        store_upper_halves(bits, num, out);
    }
}

template <typename T, bool is_nearest>
DEVICE void quantize_row(const T *rows, message_rows m, int64_t i, counter_key key, row_lanes lanes, uint8_t *message,
                         int32_t *first_bad) {
    const T *row = rows + m.row_index[i] * m.dim;
    const int bit_width = m.bit_width[i];
    row_scale scale = {};
    if (bit_width <= 8) {
        const row_range range = range_of(row, m.dim, lanes);
        if (!range.is_valid) {
            if (lanes.lane == 0) atomicMin(first_bad, static_cast<int32_t>(i));
            return;
        }
        scale = affine_scale<T, is_nearest>(row, m.dim, bit_width, range, lanes);
        const uint32_t parameters[1] = {scale.parameters};
        if (lanes.lane == 0) store_bytes(message + m.parameter_offset[i], 4, parameters);
    }
    uint8_t *payload = message + m.payload_offset[i];
    for (int64_t j = static_cast<int64_t>(lanes.lane) * GROUP; j < m.dim; j += lanes.width * GROUP) {
        const int num = m.dim - j < GROUP ? static_cast<int>(m.dim - j) : GROUP;
        const bool is_drawn = !is_nearest && bit_width < 32;
        const uint4 draws = is_drawn ? philox_block(key, m.node_id[i], static_cast<uint32_t>(j / PHILOX_DRAWS))
                                     : make_uint4(0, 0, 0, 0);
        uint8_t *out = payload + j / GROUP * bit_width;
        uint32_t bits[GROUP];
        if (bit_width > 8) {
            send_wide_group<T, is_nearest>(row, j, num, bit_width, draws, out);
        } else {
            load_group(row, j, num, bits);
            code_group<is_nearest>(bits, num, bit_width, scale, draws, out);
        }
    }
}

/* Values of a group of codes: zero_point + step * code, each operation rounded. */
DEVICE void decode_group(const uint8_t *in, int num, int bit_width, float zero_point, float step,
                         uint32_t (&bits)[GROUP]) {
    uint32_t words[2];
    load_bytes(in, (num * bit_width + 7) / 8, words);
    const uint64_t codes = static_cast<uint64_t>(words[1]) << 32 | words[0];
    const uint32_t top = (1u << bit_width) - 1u;
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const float code = static_cast<float>(static_cast<uint32_t>(codes >> i * bit_width) & top);
        bits[i] = __float_as_uint(zero_point + __fmul_rn(step, code));
    }
}

/* Elements of W on the wire as the bits of float32. */
template <typename W> DEVICE void receive_wide_group(const uint8_t *in, int num, uint32_t (&bits)[GROUP]) {
    uint32_t words[GROUP_WORDS<W>];
    load_bytes(in, num * static_cast<int>(sizeof(W)), words);
    widen_words<W>(words, bits);
}

/* What 16 bits on the wire are of: the row's own storage, or bfloat16 for float32. */
template <typename T> struct wire_of { using type = T; };
template <> struct wire_of<float> { using type = __nv_bfloat16; };

template <typename T>
DEVICE void put_group(T *row, int64_t j, int num, int is_accumulated, uint32_t (&bits)[GROUP]) {
    if (is_accumulated) {
        uint32_t before[GROUP];
        load_group(row, j, num, before);
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            bits[i] = __float_as_uint(__uint_as_float(bits[i]) + __uint_as_float(before[i]));
    }
    store_group(row, j, num, bits);
}

template <typename T>
DEVICE void dequantize_row(const uint8_t *message, message_rows m, int64_t i, row_lanes lanes, int is_accumulated,
                           T *rows) {
    T *row = rows + m.row_index[i] * m.dim;
    const int bit_width = m.bit_width[i];
    const uint8_t *payload = message + m.payload_offset[i];
    uint32_t parameters[1] = {0};
    if (bit_width <= 8) load_bytes(message + m.parameter_offset[i], 4, parameters);
    const float zero_point = bf16_value(parameters[0] & 0xffffu), step = bf16_value(parameters[0] >> 16);
    for (int64_t j = static_cast<int64_t>(lanes.lane) * GROUP; j < m.dim; j += lanes.width * GROUP) {
        const int num = m.dim - j < GROUP ? static_cast<int>(m.dim - j) : GROUP;
        const uint8_t *in = payload + j / GROUP * bit_width;
        uint32_t bits[GROUP];
        if (bit_width == 16 && sizeof(T) == 2 && !is_accumulated) {
            uint32_t words[GROUP / 2]; /* as they stand, NaN too */
            load_bytes(in, 2 * num, words);
            store_bytes(reinterpret_cast<uint8_t *>(row + j), 2 * num, words);
            continue;
        }
        if (bit_width <= 8)
            decode_group(in, num, bit_width, zero_point, step, bits);
        else if (bit_width == 16)
            receive_wide_group<typename wire_of<T>::type>(in, num, bits);
        else
            receive_wide_group<float>(in, num, bits);
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
