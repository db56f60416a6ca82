/* Rows of any storage <-> bytes of one message of rotated codes. Wire: ops/quantization.py.
 *
 * Maths     y = R (x / u), u the power of two at or below max|x|, R of rotation.cuh. delta = K_b rms(y);
 *           code = floor(y / delta + 2^(b-1)), clamped to [0, 2^b - 1]; at 1 bit the sign of y. x ~ R' (step * q) with
 *           q = code - (2^b - 1) / 2: step = u y.y / y.q, so that the decoded row's product with x is x.x, or to the
 *           nearest u y.q / q.q. 16 and 32 bits: message_rows.cuh.
 * Threads   a row is taken by `width` neighboring lanes, 16, or 32 where its blocks have 1024 columns. It is read from
 *           memory once, into shared memory, where it is rotated, summed and coded, and written once. A row too wide for
 *           that lies in its lanes' part of `scratch`, and the lanes of a part take several rows, one after another.
 * Results   equal the host's to the bit: the same operations in the same order, sums over 16 lanes as in row_scale.cuh,
 *           no sum across rows. The only atomic is the least position of a row that can't be coded.
 *
 * Reference: Vargaftik et al., DRIVE, NeurIPS 2021; EDEN, ICML 2022. Steps for a Gaussian: Max, 1960. */
#include "message_rows.cuh"
#include "rotation.cuh"

constexpr uint32_t EXPONENT = 0x7f800000u, LEAST_NORMAL = 0x00800000u, LARGEST_BF16 = 0x7f7fu;

/* Steps of the uniform quantizer that has the least error for a normal distribution of deviation 1. */
DEVICE float gaussian_step(int bit_width) { return bit_width == 2 ? 0.9957f : bit_width == 4 ? 0.3352f : 0.0308f; }

/* How the columns of a rotated row become codes. */
struct rotated_scale {
    float inverse, half, top;

    DEVICE float code_of(float y) const {
        if (top == 1.0f) return y >= 0.0f ? 1.0f : 0.0f;
        const float code = floorf(__fmul_rn(y, inverse) + half);
        return code < 0.0f ? 0.0f : code > top ? top : code;
    }
    DEVICE float centered(float code) const { return code - 0.5f * top; }
};

/* A row of T as float32 in `y`; returns the bits of its largest magnitude. */
template <typename T> DEVICE uint32_t gather_row(const T *row, int dim, float *y, row_lanes lanes) {
    uint32_t most = 0;
    for (int j = lanes.lane * GROUP; j < dim; j += lanes.width * GROUP) {
        const int num = num_in_group(dim, j);
        uint32_t bits[GROUP];
        load_group(row, j, num, bits);
        store_group(y, j, num, bits);
#pragma unroll
        for (int i = 0; i < GROUP; i++) most = max(most, bits[i] & 0x7fffffffu);
    }
    for (int step = lanes.width / 2; step; step /= 2)
        most = max(most, __shfl_xor_sync(lanes.mask, most, step, lanes.width));
    return most;
}

/* Each lane the columns that it gathered. */
DEVICE void multiply_row(float *y, int dim, float factor, row_lanes lanes) {
    for (int j = lanes.lane * GROUP; j < dim; j += lanes.width * GROUP) {
        const int num = num_in_group(dim, j);
        uint32_t bits[GROUP];
        load_group(y, j, num, bits);
#pragma unroll
        for (int i = 0; i < GROUP; i++) bits[i] = __float_as_uint(__fmul_rn(__uint_as_float(bits[i]), factor));
        store_group(y, j, num, bits);
    }
}

DEVICE float energy_of(const float *y, int dim, row_lanes lanes) {
    float sum = 0.0f;
    for (int j = lanes.lane % SUMMING_LANES; j < dim; j += SUMMING_LANES) sum += __fmul_rn(y[j], y[j]);
    return sum_of_lanes(sum, SUMMING_LANES, lanes.mask);
}

DEVICE rotated_scale scale_of_energy(float energy, int dim, int bit_width) {
    const float rms = __fsqrt_rn(__fdiv_rn(energy, static_cast<float>(dim)));
    const float delta = __fmul_rn(gaussian_step(bit_width), rms);
    return {__fdiv_rn(1.0f, delta), static_cast<float>(1 << (bit_width - 1)), static_cast<float>((1 << bit_width) - 1)};
}

/* The step on the wire, bfloat16 bits. */
DEVICE uint32_t step_of(const float *y, int dim, float energy, rotated_scale scale, float unit, int is_nearest,
                        row_lanes lanes) {
    float product = 0.0f, square = 0.0f;
    for (int j = lanes.lane % SUMMING_LANES; j < dim; j += SUMMING_LANES) {
        const float q = scale.centered(scale.code_of(y[j]));
        product += __fmul_rn(y[j], q);
        square += __fmul_rn(q, q);
    }
    product = sum_of_lanes(product, SUMMING_LANES, lanes.mask);
    square = sum_of_lanes(square, SUMMING_LANES, lanes.mask);
    const float step = is_nearest ? __fdiv_rn(product, square) : __fdiv_rn(energy, product);
    const uint32_t bits = narrow_bits<__nv_bfloat16>::narrow(__float_as_uint(__fmul_rn(step, unit)));
    return bits < LARGEST_BF16 ? bits : LARGEST_BF16;
}

DEVICE void store_codes(const float *y, int dim, int bit_width, rotated_scale scale, row_lanes lanes,
                        uint8_t *payload) {
    for (int j = lanes.lane * GROUP; j < dim; j += lanes.width * GROUP) {
        const int num = num_in_group(dim, j);
        uint32_t bits[GROUP];
        load_group(y, j, num, bits);
        uint64_t codes = 0;
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (i < num) {
                const float code = scale.code_of(__uint_as_float(bits[i]));
                codes |= static_cast<uint64_t>(static_cast<uint32_t>(code)) << i * bit_width;
            }
        const uint32_t words[2] = {static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32)};
        store_bytes(payload + j / GROUP * bit_width, (num * bit_width + 7) / 8, words);
    }
}

DEVICE void store_zeros(int num_bytes, row_lanes lanes, uint8_t *payload) {
    for (int byte = lanes.lane; byte < num_bytes; byte += lanes.width) payload[byte] = 0;
}

/* Returns whether the row could be coded. */
template <typename T>
DEVICE bool send_rotated_row(const T *row, message_rows m, int64_t i, const row_rotation &r, int is_nearest,
                             row_lanes lanes, float *y, uint8_t *message) {
    const int bit_width = m.bit_width[i];
    uint8_t *payload = message + m.payload_offset[i];
    const uint32_t most = gather_row(row, r.dim, y, lanes);
    if (most > __float_as_uint(LARGEST_MAGNITUDE)) return false;
    uint32_t step[1] = {0};
    if (most == 0) {
        store_zeros((r.dim * bit_width + 7) / 8, lanes, payload);
    } else {
        const uint32_t unit = max(most & EXPONENT, LEAST_NORMAL);
        multiply_row(y, r.dim, __uint_as_float((254u << 23) - unit), lanes); /* by 1 / unit */
        rotate_row<false>(y, r, lanes);
        const float energy = energy_of(y, r.dim, lanes);
        const rotated_scale scale = scale_of_energy(energy, r.dim, bit_width);
        step[0] = step_of(y, r.dim, energy, scale, __uint_as_float(unit), is_nearest, lanes);
        store_codes(y, r.dim, bit_width, scale, lanes, payload);
    }
    if (lanes.lane == 0) store_bytes(message + m.parameter_offset[i], 2, step);
    return true;
}

/* step * (code - top / 2) of a row's codes, into y. */
DEVICE void load_codes(const uint8_t *payload, int dim, int bit_width, float step, row_lanes lanes, float *y) {
    const uint32_t top = (1u << bit_width) - 1u;
    for (int j = lanes.lane * GROUP; j < dim; j += lanes.width * GROUP) {
        const int num = num_in_group(dim, j);
        uint32_t words[2], bits[GROUP];
        load_bytes(payload + j / GROUP * bit_width, (num * bit_width + 7) / 8, words);
        const uint64_t codes = static_cast<uint64_t>(words[1]) << 32 | words[0];
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            const float code = static_cast<float>(static_cast<uint32_t>(codes >> i * bit_width) & top);
            bits[i] = __float_as_uint(__fmul_rn(code - 0.5f * static_cast<float>(top), step));
        }
        store_group(y, j, num, bits);
    }
}

template <typename T>
DEVICE void receive_rotated_row(const uint8_t *message, message_rows m, int64_t i, const row_rotation &r,
                                int is_accumulated, row_lanes lanes, float *y, T *row) {
    uint32_t step[1];
    load_bytes(message + m.parameter_offset[i], 2, step);
    load_codes(message + m.payload_offset[i], r.dim, m.bit_width[i], bf16_value(step[0]), lanes, y);
    rotate_row<true>(y, r, lanes);
    for (int j = lanes.lane * GROUP; j < r.dim; j += lanes.width * GROUP) {
        const int num = num_in_group(r.dim, j);
        uint32_t bits[GROUP];
        load_group(y, j, num, bits);
        put_group(row, j, num, is_accumulated, bits);
    }
}

/* Where the lanes of this thread keep a row: in shared memory where there is no scratch. */
DEVICE float *row_memory(float *scratch, int stride, int width) {
    DYNAMIC_SHARED(float, rows);
    return scratch ? scratch + row_of_lane(width) * stride : rows + static_cast<int>(threadIdx.x) / width * stride;
}

DEVICE int64_t num_at_once(int width) { return static_cast<int64_t>(gridDim.x) * blockDim.x / width; }

#define ROTATION_KERNELS(T, suffix)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 3) quantize_rotated_##suffix(                                 \
        const T *rows, const int32_t *row_index, const int64_t *node_id, const uint8_t *bit_width,                  \
        const int64_t *payload_offset, const int64_t *parameter_offset, int64_t num_rows, int32_t dim,              \
        int32_t block, float scale, int32_t width, int32_t stride, float *scratch, uint32_t seed, uint32_t epoch,   \
        uint32_t stream, uint32_t rotation_stream, int32_t is_nearest, uint8_t *message, int32_t *first_bad) {      \
        const message_rows m = {row_index, node_id, bit_width, payload_offset, parameter_offset, dim};              \
        const row_lanes lanes = lanes_of_row(width);                                                                \
        float *const y = row_memory(scratch, stride, width);                                                        \
        for (int64_t i = row_of_lane(width); i < num_rows; i += num_at_once(width)) {                               \
            const T *row = rows + row_index[i] * m.dim;                                                             \
            const row_rotation r = {{seed, epoch, rotation_stream}, node_id[i], dim, block, scale};                 \
            if (bit_width[i] > 8 && is_nearest)                                                                     \
                send_wide_row<T, true>(row, m, i, {seed, epoch, stream}, lanes, message);                           \
            else if (bit_width[i] > 8)                                                                              \
                send_wide_row<T, false>(row, m, i, {seed, epoch, stream}, lanes, message);                          \
            else if (!send_rotated_row(row, m, i, r, is_nearest, lanes, y, message) && lanes.lane == 0)             \
                atomicMin(first_bad, static_cast<int32_t>(i));                                                      \
            __syncwarp(lanes.mask);                                                                                 \
        }                                                                                                           \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 3) dequantize_rotated_##suffix(                               \
        const uint8_t *message, const int32_t *row_index, const int64_t *node_id, const uint8_t *bit_width,         \
        const int64_t *payload_offset, const int64_t *parameter_offset, int64_t num_rows, int32_t dim,              \
        int32_t block, float scale, int32_t width, int32_t stride, float *scratch, uint32_t seed, uint32_t epoch,   \
        uint32_t rotation_stream, int32_t is_accumulated, T *rows) {                                                \
        const message_rows m = {row_index, node_id, bit_width, payload_offset, parameter_offset, dim};              \
        const row_lanes lanes = lanes_of_row(width);                                                                \
        float *const y = row_memory(scratch, stride, width);                                                        \
        for (int64_t i = row_of_lane(width); i < num_rows; i += num_at_once(width)) {                               \
            T *row = rows + row_index[i] * m.dim;                                                                   \
            const row_rotation r = {{seed, epoch, rotation_stream}, node_id[i], dim, block, scale};                 \
            if (bit_width[i] > 8)                                                                                   \
                receive_wide_row(message, m, i, lanes, is_accumulated, row);                                        \
            else                                                                                                    \
                receive_rotated_row(message, m, i, r, is_accumulated, lanes, y, row);                               \
            __syncwarp(lanes.mask);                                                                                 \
        }                                                                                                           \
    }

FOR_EACH_STORAGE(ROTATION_KERNELS)
