/* Eight neighboring columns of a row, those of one block of Philox, as a lane loads, masks and stores them. */
#ifndef HPCGNN_EIGHTS_CUH
#define HPCGNN_EIGHTS_CUH
#include "philox.cuh"

#define COLUMNS PHILOX_DRAWS

/* Of eight columns. */
template <typename T> constexpr int32_t VECTORS = COLUMNS * sizeof(T) / sizeof(uint4);

struct Eight {
    float of[COLUMNS];
};

/* Shape of every matrix of a launch. If is_vector, dim is a multiple of 8 and rows begin on 16 bytes. */
struct Shape {
    int64_t num_rows, dim;
    bool is_vector;

    DEVICE int64_t num_blocks() const { return (dim + COLUMNS - 1) / COLUMNS; }
};

/* Columns 8 * block .. 8 * block + 7 of a row; zeros past its end, and in a row or a block that there is not. */
template <typename T> DEVICE Eight load_eight(const T *rows, const Shape &shape, int64_t row, int64_t block) {
    Eight x = {};
    const int64_t first = COLUMNS * block;
    if (row >= shape.num_rows || first >= shape.dim) return x;
    const T *from = rows + row * shape.dim + first;
    if (shape.is_vector) {
        alignas(16) T loaded[COLUMNS];
        for (int32_t k = 0; k < VECTORS<T>; k++)
            reinterpret_cast<uint4 *>(loaded)[k] = reinterpret_cast<const uint4 *>(from)[k];
        for (int32_t k = 0; k < COLUMNS; k++) x.of[k] = to_f32(loaded[k]);
    } else {
        for (int32_t k = 0; k < COLUMNS; k++)
            if (first + k < shape.dim) x.of[k] = to_f32(from[k]);
    }
    return x;
}

template <typename T> DEVICE void store_eight(T *rows, const Shape &shape, int64_t row, int64_t block, const Eight &x) {
    if (row >= shape.num_rows) return;
    const int64_t first = COLUMNS * block;
    T *to = rows + row * shape.dim + first;
    if (shape.is_vector) {
        alignas(16) T stored[COLUMNS];
        for (int32_t k = 0; k < COLUMNS; k++) stored[k] = from_f32<T>(x.of[k]);
        for (int32_t k = 0; k < VECTORS<T>; k++)
            reinterpret_cast<uint4 *>(to)[k] = reinterpret_cast<const uint4 *>(stored)[k];
    } else {
        for (int32_t k = 0; k < COLUMNS; k++)
            if (first + k < shape.dim) to[k] = from_f32<T>(x.of[k]);
    }
}

DEVICE float sum_of_eight(const Eight &x) {
    return ((x.of[0] + x.of[1]) + (x.of[2] + x.of[3])) + ((x.of[4] + x.of[5]) + (x.of[6] + x.of[7]));
}

/* The dropout; a threshold of 0 drops nothing and reads no node id. */
struct Mask {
    const int64_t *node_id;
    counter_key key;
    uint32_t threshold;
    float scale;
};

/* v, scaled if there is dropout, where an element is not dropped and, with is_rectified, u > 0 or NaN; elsewhere 0. */
DEVICE Eight pass(Eight v, const Eight &u, bool is_rectified, const Mask &mask, int64_t row, int64_t block) {
    if (mask.threshold) {
        const uint4 draws = philox_block(mask.key, mask.node_id[row], (uint32_t)block);
        for (int32_t k = 0; k < COLUMNS; k++)
            v.of[k] = philox_draw(draws, k) >= mask.threshold ? v.of[k] * mask.scale : 0.0f;
    }
    if (is_rectified)
        for (int32_t k = 0; k < COLUMNS; k++) v.of[k] = u.of[k] <= 0.0f ? 0.0f : v.of[k];
    return v;
}
#endif
