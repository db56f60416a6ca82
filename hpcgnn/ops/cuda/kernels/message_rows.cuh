/* One message: its rows by index, their widths and places, and its rows of 16 and 32 bits, which no code changes.
 *
 * 16 bits are bfloat16, rounded by draws or to the nearest, or a row's own 16 bits; 32 bits are float32. A row is taken
 * by the lanes of a sub-warp, 8 columns at a time each. */
#ifndef HPCGNN_MESSAGE_ROWS_CUH
#define HPCGNN_MESSAGE_ROWS_CUH
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

/* How many columns the group at column j has. */
DEVICE int num_in_group(int64_t dim, int64_t j) { return dim - j < GROUP ? static_cast<int>(dim - j) : GROUP; }

/* The first column that a lane takes. */
DEVICE int64_t first_group(row_lanes lanes) { return static_cast<int64_t>(lanes.lane) * GROUP; }

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

/* A row of 16 or 32 bits. */
template <typename T, bool is_nearest>
DEVICE void send_wide_row(const T *row, message_rows m, int64_t i, counter_key key, row_lanes lanes,
                          uint8_t *message) {
    const int bit_width = m.bit_width[i];
    uint8_t *payload = message + m.payload_offset[i];
    for (int64_t j = first_group(lanes); j < m.dim; j += lanes.width * GROUP) {
        const bool is_drawn = !is_nearest && bit_width < 32;
        const uint4 draws = is_drawn ? philox_block(key, m.node_id[i], static_cast<uint32_t>(j / PHILOX_DRAWS))
                                     : make_uint4(0, 0, 0, 0);
        send_wide_group<T, is_nearest>(row, j, num_in_group(m.dim, j), bit_width, draws,
                                       payload + j / GROUP * bit_width);
    }
}

/* Elements of W on the wire as the bits of float32. */
template <typename W> DEVICE void receive_wide_group(const uint8_t *in, int num, uint32_t (&bits)[GROUP]) {
    uint32_t words[GROUP_WORDS<W>];
    load_bytes(in, num * static_cast<int>(sizeof(W)), words);
    widen_words<W>(words, bits);
}

/* The type of 16 bits on the wire: the row's own storage, or bfloat16 for float32. */
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
DEVICE void receive_wide_row(const uint8_t *message, message_rows m, int64_t i, row_lanes lanes, int is_accumulated,
                             T *row) {
    const int bit_width = m.bit_width[i];
    for (int64_t j = first_group(lanes); j < m.dim; j += lanes.width * GROUP) {
        const int num = num_in_group(m.dim, j);
        const uint8_t *in = message + m.payload_offset[i] + j / GROUP * bit_width;
        if (bit_width == 16 && sizeof(T) == 2 && !is_accumulated) {
            uint32_t words[GROUP / 2]; /* as they stand, NaN too */
            load_bytes(in, 2 * num, words);
            store_bytes(reinterpret_cast<uint8_t *>(row + j), 2 * num, words);
            continue;
        }
        uint32_t bits[GROUP];
        if (bit_width == 16)
            receive_wide_group<typename wire_of<T>::type>(in, num, bits);
        else
            receive_wide_group<float>(in, num, bits);
        put_group(row, j, num, is_accumulated, bits);
    }
}
#endif
