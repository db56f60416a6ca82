/* Dot products of columns over the lanes of a sub-warp, with the widest loads that the rows' alignment allows.
 *
 * One load of a lane takes `vector` columns: HalfGNN's half2, half4 and half8 (Section 4.2), or float2 and float4.
 * The wider the loads, the fewer lanes share a product, and the fewer rounds of shuffles add it up. Products and sums
 * are float32: a lane adds its columns in ascending order, then lanes are added by halves, so a sum has one order. */
#ifndef HPCGNN_DOTS_CUH
#define HPCGNN_DOTS_CUH
#include "pairs.cuh"

/* The columns of a 32-bit word: one of float32, two of the others. */
DEVICE void unpack_word(uint32_t word, float, float *x) { x[0] = __uint_as_float(word); }
template <class T> DEVICE void unpack_word(uint32_t word, T, float *x) {
    const float2 both = widen(*reinterpret_cast<const typename pair_of<T>::type *>(&word));
    x[0] = both.x;
    x[1] = both.y;
}

DEVICE void load_words(const void *place, uint32_t (&words)[1]) { words[0] = *static_cast<const uint32_t *>(place); }
DEVICE void load_words(const void *place, uint32_t (&words)[2]) {
    const uint2 loaded = *static_cast<const uint2 *>(place);
    words[0] = loaded.x;
    words[1] = loaded.y;
}
DEVICE void load_words(const void *place, uint32_t (&words)[4]) {
    const uint4 loaded = *static_cast<const uint4 *>(place);
    words[0] = loaded.x;
    words[1] = loaded.y;
    words[2] = loaded.z;
    words[3] = loaded.w;
}

/* VECTOR successive columns by one load. */
template <int VECTOR, class T> DEVICE void load_vector(const T *place, float (&x)[VECTOR]) {
    if constexpr (VECTOR * sizeof(T) < 4) {
        x[0] = to_f32(place[0]);
    } else {
        constexpr int WORDS = VECTOR * sizeof(T) / 4, COLUMNS = 4 / sizeof(T);
        uint32_t words[WORDS];
        load_words(place, words);
        for (int w = 0; w < WORDS; w++) unpack_word(words[w], T(), x + w * COLUMNS);
    }
}

/* This lane's share of <left, right>; dim is a multiple of VECTOR. */
template <int VECTOR, class T, class U>
DEVICE float partial_dot(const T *left, const U *right, int64_t dim, int lane, int num_lanes) {
    float sum = 0.0f;
    const int end = static_cast<int>(dim), step = num_lanes * VECTOR;
#pragma unroll 4
    for (int j = lane * VECTOR; j < end; j += step) {
        float x[VECTOR], y[VECTOR];
        load_vector<VECTOR>(left + j, x);
        load_vector<VECTOR>(right + j, y);
        for (int k = 0; k < VECTOR; k++) sum = fmaf(x[k], y[k], sum);
    }
    return sum;
}

/* As above for a `vector` that is known at the launch: 1, 2, 4, or 8 of 16-bit columns. */
template <class T, class U>
DEVICE float partial_dot(const T *left, const U *right, int64_t dim, int lane, int num_lanes, int vector) {
    if constexpr (sizeof(T) == 2 && sizeof(U) == 2)
        if (vector == 8) return partial_dot<8>(left, right, dim, lane, num_lanes);
    if (vector == 4) return partial_dot<4>(left, right, dim, lane, num_lanes);
    if (vector == 2) return partial_dot<2>(left, right, dim, lane, num_lanes);
    return partial_dot<1>(left, right, dim, lane, num_lanes);
}
#endif
