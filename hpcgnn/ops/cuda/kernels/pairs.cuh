/* Two neighboring columns of a row as one value: the half2 of HalfGNN, Section 4.1.1, for every storage; and what a lane
 * holds of a row, one pair, or as many as 16 bytes have: the half8 of Section 4.1.2.
 *
 * A pair of 16-bit columns is one load of 4 bytes. Rows of an odd number of columns do not all begin on a pair: there
 * the two columns are loaded one by one (is_aligned is 0, for a whole launch), and the last column is padded with zero
 * in the register, never in memory. Several pairs are taken where every row of a launch begins on 16 bytes. */
#ifndef HPCGNN_PAIRS_CUH
#define HPCGNN_PAIRS_CUH
#include "device.cuh"

/* The columns of one lane: `first` and those behind it, `count` in all. Heads share the columns evenly; `head` is that
 * of the first column, `next_head` that of the second one. Where a lane has more than a pair, all have the same head. */
struct lane_columns {
    int64_t first;
    int count, head, next_head;
};

template <int COLUMNS> DEVICE lane_columns columns_from(int64_t first, int64_t dim, int64_t head_dim) {
    const int count = first + COLUMNS <= dim ? COLUMNS : first < dim ? 1 : 0;
    if (head_dim == dim) return {first, count, 0, 0};
    return {first, count, static_cast<int>(first / head_dim), static_cast<int>((first + (count >= 2)) / head_dim)};
}

template <class T> struct pair_of;
template <> struct pair_of<float> {
    typedef float2 type;
};
template <> struct pair_of<__nv_bfloat16> {
    typedef __nv_bfloat162 type;
};
template <> struct pair_of<__half> {
    typedef __half2 type;
};

DEVICE float2 make_pair(float x, float y) { return make_float2(x, y); }
DEVICE __nv_bfloat162 make_pair(__nv_bfloat16 x, __nv_bfloat16 y) { return __halves2bfloat162(x, y); }
DEVICE __half2 make_pair(__half x, __half y) { return __halves2half2(x, y); }

DEVICE float2 widen(float2 x) { return x; }
DEVICE float2 widen(__nv_bfloat162 x) { return __bfloat1622float2(x); }
DEVICE float2 widen(__half2 x) { return __half22float2(x); }

template <class T> DEVICE typename pair_of<T>::type narrow(float2 x) {
    return make_pair(from_f32<T>(x.x), from_f32<T>(x.y));
}

template <class T> DEVICE typename pair_of<T>::type no_pair() { return narrow<T>(make_float2(0.0f, 0.0f)); }

/* One column at least of a row; zero behind its end. Aligned rows have no end within a pair. */
template <class T>
DEVICE typename pair_of<T>::type load_pair(const T *row, const lane_columns &columns, int is_aligned) {
    const T *place = row + columns.first;
    if (is_aligned) return *reinterpret_cast<const typename pair_of<T>::type *>(place);
    return make_pair(place[0], columns.count == 2 ? place[1] : from_f32<T>(0.0f));
}

/* Rounds to the storage, once; stores no padding. */
template <class T> DEVICE void store_pair(T *row, const lane_columns &columns, int is_aligned, float2 x) {
    T *place = row + columns.first;
    if (is_aligned) {
        *reinterpret_cast<typename pair_of<T>::type *>(place) = narrow<T>(x);
    } else {
        place[0] = from_f32<T>(x.x);
        if (columns.count == 2) place[1] = from_f32<T>(x.y);
    }
}

/* As many pairs as one load of 16 bytes takes. */
template <class T> constexpr int WIDE_PAIRS = 8 / sizeof(T);

/* Of one lane. */
template <class T, int PAIRS> struct alignas(PAIRS * 2 * sizeof(T) < 16 ? PAIRS * 2 * sizeof(T) : 16) lane_pairs {
    typename pair_of<T>::type pair[PAIRS];
};

template <class T, int PAIRS> constexpr int LANE_VECTORS = PAIRS * 2 * sizeof(T) / sizeof(uint4);

template <class T, int PAIRS> DEVICE lane_pairs<T, PAIRS> no_pairs() {
    lane_pairs<T, PAIRS> x;
    for (int p = 0; p < PAIRS; p++) x.pair[p] = no_pair<T>();
    return x;
}

template <int PAIRS, class T>
DEVICE lane_pairs<T, PAIRS> load_pairs(const T *row, const lane_columns &columns, int is_aligned) {
    lane_pairs<T, PAIRS> x;
    if (PAIRS == 1) {
        x.pair[0] = load_pair(row, columns, is_aligned);
    } else {
        for (int k = 0; k < LANE_VECTORS<T, PAIRS>; k++)
            reinterpret_cast<uint4 *>(&x)[k] = reinterpret_cast<const uint4 *>(row + columns.first)[k];
    }
    return x;
}

template <int PAIRS, class T>
DEVICE void store_pairs(T *row, const lane_columns &columns, int is_aligned, const lane_pairs<float, PAIRS> &x) {
    if (PAIRS == 1) {
        store_pair(row, columns, is_aligned, x.pair[0]);
    } else {
        lane_pairs<T, PAIRS> stored;
        for (int p = 0; p < PAIRS; p++) stored.pair[p] = narrow<T>(x.pair[p]);
        for (int k = 0; k < LANE_VECTORS<T, PAIRS>; k++)
            reinterpret_cast<uint4 *>(row + columns.first)[k] = reinterpret_cast<const uint4 *>(&stored)[k];
    }
}
#endif
