/* Rows and wire bytes in groups of eight columns, which at b bits are b bytes; a lane takes a group at a time.
 *
 * Loads and stores are of 16 bytes (rows) or 4 (bytes) where the address allows, else element by element: rows of a
 * message begin at any byte. Conversions keep what a NaN carries, as the host's do (ext/src/vector.h). */
#ifndef HPCGNN_ROW_GROUPS_CUH
#define HPCGNN_ROW_GROUPS_CUH
#include "device.cuh"

constexpr int GROUP = 8;

DEVICE bool is_nan_bits(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

template <typename T> struct narrow_bits; /* the 16 bits of an element <-> the 32 of its float */

template <> struct narrow_bits<__nv_bfloat16> {
    static DEVICE uint32_t widen(uint32_t half) { return half << 16; }
    static DEVICE uint32_t narrow(uint32_t bits) {
        return is_nan_bits(bits) ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    }
};

template <> struct narrow_bits<__half> {
    static DEVICE uint32_t widen(uint32_t half) {
        const uint32_t sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << 13;
        if (magnitude > 0x0f800000u) return sign | magnitude | 0x7fc00000u;
        return __float_as_uint(__half2float(__ushort_as_half(static_cast<unsigned short>(half))));
    }
    static DEVICE uint32_t narrow(uint32_t bits) {
        if (is_nan_bits(bits)) return (bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu);
        return __half_as_ushort(__float2half_rn(__uint_as_float(bits)));
    }
};

DEVICE bool is_aligned(const void *address, int bytes) {
    return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
}

/* The first `num` of N words' bytes, little-endian; the others read as 0. */
template <int N> DEVICE void load_bytes(const uint8_t *in, int num, uint32_t (&words)[N]) {
    const bool is_by_word = is_aligned(in, 4);
#pragma unroll
    for (int w = 0; w < N; w++) {
        const bool is_whole = is_by_word && num >= 4 * w + 4;
        words[w] = is_whole ? reinterpret_cast<const uint32_t *>(in)[w] : 0;
        if (is_whole) continue;
#pragma unroll
        for (int byte = 4 * w; byte < 4 * w + 4; byte++)
            if (byte < num) words[w] |= static_cast<uint32_t>(in[byte]) << byte % 4 * 8;
    }
}

template <int N> DEVICE void store_bytes(uint8_t *out, int num, const uint32_t (&words)[N]) {
    const bool is_by_word = is_aligned(out, 4);
#pragma unroll
    for (int w = 0; w < N; w++) {
        if (is_by_word && num >= 4 * w + 4) {
            reinterpret_cast<uint32_t *>(out)[w] = words[w];
            continue;
        }
#pragma unroll
        for (int byte = 4 * w; byte < 4 * w + 4; byte++)
            if (byte < num) out[byte] = static_cast<uint8_t>(words[w] >> byte % 4 * 8);
    }
}

/* Elements of a group as they lie in memory: one word each of float32, one a pair of 16 bits. */
template <typename T> constexpr int GROUP_WORDS = GROUP * static_cast<int>(sizeof(T)) / 4;

template <typename T> DEVICE void load_words(const T *in, int num, uint32_t (&words)[GROUP_WORDS<T>]) {
    if (num < GROUP || !is_aligned(in, 16)) {
        load_bytes(reinterpret_cast<const uint8_t *>(in), num * static_cast<int>(sizeof(T)), words);
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP_WORDS<T> / 4; i++) {
        const uint4 four = reinterpret_cast<const uint4 *>(in)[i];
        words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    }
}

template <typename T> DEVICE void store_words(T *out, int num, const uint32_t (&words)[GROUP_WORDS<T>]) {
    if (num < GROUP || !is_aligned(out, 16)) {
        store_bytes(reinterpret_cast<uint8_t *>(out), num * static_cast<int>(sizeof(T)), words);
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP_WORDS<T> / 4; i++)
        reinterpret_cast<uint4 *>(out)[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                                       words[4 * i + 3]);
}

/* Words of float32 <-> words of T, eight elements. */
template <typename T> DEVICE void widen_words(const uint32_t (&words)[GROUP_WORDS<T>], uint32_t (&bits)[GROUP]) {
#pragma unroll
    for (int j = 0; j < GROUP; j++) bits[j] = narrow_bits<T>::widen(words[j / 2] >> j % 2 * 16 & 0xffffu);
}
template <> DEVICE void widen_words<float>(const uint32_t (&words)[GROUP], uint32_t (&bits)[GROUP]) {
#pragma unroll
    for (int j = 0; j < GROUP; j++) bits[j] = words[j];
}

template <typename T> DEVICE void narrow_words(const uint32_t (&bits)[GROUP], uint32_t (&words)[GROUP_WORDS<T>]) {
#pragma unroll
    for (int j = 0; j < GROUP; j += 2)
        words[j / 2] = narrow_bits<T>::narrow(bits[j]) | narrow_bits<T>::narrow(bits[j + 1]) << 16;
}
template <> DEVICE void narrow_words<float>(const uint32_t (&bits)[GROUP], uint32_t (&words)[GROUP]) {
#pragma unroll
    for (int j = 0; j < GROUP; j++) words[j] = bits[j];
}

/* Columns j .. j+num-1 of a row as the bits of float32; the others of the group are 0. */
template <typename T> DEVICE void load_group(const T *row, int64_t j, int num, uint32_t (&bits)[GROUP]) {
    uint32_t words[GROUP_WORDS<T>];
    load_words(row + j, num, words);
    widen_words<T>(words, bits);
}

template <typename T> DEVICE void store_group(T *row, int64_t j, int num, const uint32_t (&bits)[GROUP]) {
    uint32_t words[GROUP_WORDS<T>];
    narrow_words<T>(bits, words);
    store_words(row + j, num, words);
}
#endif
