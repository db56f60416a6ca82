/* Row-wise operations: dropout, ReLU + dropout, and normalization + ReLU + dropout in one pass, with their backwards.
 *
 * Maths (ext/src/pointwise.h): x^ = (x - mean) * rstd, rstd = 1 / sqrt(variance + eps), over a row's columns;
 * u = x^ * weight + bias; out = u * scale where u > 0 or NaN and the draw of (node_id, column) is >= threshold, else 0.
 * Backward, with d the gradient of u:
 *   row_gradient = rstd * (d * weight - mean(d * weight) - x^ * mean(d * weight * x^))
 *   weight_gradient = sum over rows of d * x^, bias_gradient = sum over rows of d
 * Threads: a lane has eight neighboring columns, those of one block of Philox, so that no draw is made twice: one load
 * and one store of 16 bytes where rows are aligned. 1 to 32 lanes share a row, the fewest that hold its columns; of
 * rows past 256 columns a lane keeps its first eight in registers and reads the others again, from the cache.
 * Accuracy: with e = 2^-24, a mean errs by (dim / 256 + 9) e times the row's largest magnitude M; 1 / deviation errs
 * relatively by twice that times rstd, plus 16 e; normalized values err by the bounds of tests/reference_pointwise.py.
 * Without normalization every value has the host's bits.
 * Determinism: a row is summed by fixed lanes, in a fixed tree. Each sub-warp writes its own sums over its rows, which
 * column_sums.cu adds; the geometry depends on the numbers of rows and columns alone. No atomics. */
#include "eights.cuh"

/* Values that pass the mask and, unless `rectifier` is NULL, its ReLU. One thread per eight columns of a row. */
template <typename T>
DEVICE void mask_rows(const T *values, const T *rectifier, const Mask &mask, T *out, const Shape &shape) {
    const int64_t number = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t row = number / shape.num_blocks(), block = number % shape.num_blocks();
    if (row >= shape.num_rows) return;
    const Eight v = load_eight(values, shape, row, block);
    const Eight u = rectifier ? load_eight(rectifier, shape, row, block) : v;
    store_eight(out, shape, row, block, pass(v, u, rectifier != nullptr, mask, row, block));
}

/* Weight and bias of the normalization, one row each, and what it found: mean and rstd of each row. */
struct Norm {
    const float *weight, *bias;
    float eps;
    float *moments;
};

struct Moments {
    float mean, rstd;
};

/* Normalized columns of a row, and the part of the gradient that passes there. */
struct Normalized {
    Eight x, gradient;
};

/* A sub-warp's place: `lane` of `lanes` that share a row. */
struct Place {
    int32_t lane, lanes;
    int64_t group; /* in the thread block */
};

DEVICE Place place_of_thread(int32_t lanes) {
    return {(int32_t)threadIdx.x % lanes, lanes, (int64_t)threadIdx.x / lanes};
}

DEVICE Eight normalize(Eight x, const Moments &m) {
    for (int32_t k = 0; k < COLUMNS; k++) x.of[k] = (x.of[k] - m.mean) * m.rstd;
    return x;
}

/* x^ * weight + bias; a vector is a row of its own. */
DEVICE Eight scale_and_shift(const Eight &x, const Norm &norm, const Shape &shape, int64_t block) {
    const Shape vector = {1, shape.dim, shape.is_vector};
    const Eight weight = load_eight(norm.weight, vector, 0, block), bias = load_eight(norm.bias, vector, 0, block);
    Eight u;
    for (int32_t k = 0; k < COLUMNS; k++) u.of[k] = x.of[k] * weight.of[k] + bias.of[k];
    return u;
}

/* All lanes of a row, `first` their first eight: the mean, then centered squares, which a large mean does not spoil. */
template <typename T>
DEVICE Moments moments_of(const T *rows, const Shape &shape, const Place &place, int64_t row, const Eight &first,
                          float eps) {
    float sum = sum_of_eight(first), squares = 0.0f;
    for (int64_t b = place.lane + place.lanes; b < shape.num_blocks(); b += place.lanes)
        sum += sum_of_eight(load_eight(rows, shape, row, b));
    const float mean = sum_of_lanes(sum, place.lanes) / (float)shape.dim;
    for (int64_t b = place.lane; b < shape.num_blocks(); b += place.lanes) {
        Eight centered = b == place.lane ? first : load_eight(rows, shape, row, b);
        for (int32_t k = 0; k < COLUMNS; k++) {
            centered.of[k] = COLUMNS * b + k < shape.dim ? centered.of[k] - mean : 0.0f;
            centered.of[k] *= centered.of[k];
        }
        squares += sum_of_eight(centered);
    }
    return {mean, 1.0f / sqrtf(sum_of_lanes(squares, place.lanes) / (float)shape.dim + eps)};
}

template <typename T>
DEVICE void normalize_rows(const T *rows, const Norm &norm, const Mask &mask, T *out, int32_t lanes,
                           const Shape &shape) {
    const Place place = place_of_thread(lanes);
    const int64_t row = blockIdx.x * ((int64_t)blockDim.x / lanes) + place.group;
    const Eight first = load_eight(rows, shape, row, place.lane);
    const Moments m = moments_of(rows, shape, place, row, first, norm.eps);
    if (row >= shape.num_rows) return;
    if (place.lane == 0) norm.moments[2 * row] = m.mean, norm.moments[2 * row + 1] = m.rstd;
    for (int64_t b = place.lane; b < shape.num_blocks(); b += lanes) {
        const Eight x = normalize(b == place.lane ? first : load_eight(rows, shape, row, b), m);
        const Eight u = scale_and_shift(x, norm, shape, b);
        store_eight(out, shape, row, b, pass(u, u, true, mask, row, b));
    }
}

/* x^ and d of one block of columns; zeros past the last row. */
template <typename T>
DEVICE Normalized read_block(const T *rows, const T *gradient, const Norm &norm, const Mask &mask, const Moments &m,
                             int64_t row, int64_t block, const Shape &shape) {
    if (row >= shape.num_rows) return {};
    const Eight x = normalize(load_eight(rows, shape, row, block), m);
    const Eight u = scale_and_shift(x, norm, shape, block);
    return {x, pass(load_eight(gradient, shape, row, block), u, true, mask, row, block)};
}

/* Sums over rows: of d * x^, and of d. */
struct Totals {
    Eight product, gradient;
};

DEVICE void add(Totals &totals, const Normalized &columns) {
    for (int32_t k = 0; k < COLUMNS; k++) {
        totals.product.of[k] += columns.gradient.of[k] * columns.x.of[k];
        totals.gradient.of[k] += columns.gradient.of[k];
    }
}

/* Totals of one sub-warp in memory: a row of products and one of gradients. */
DEVICE void store_totals(float *sums, const Shape &shape, int64_t block, const Totals &totals) {
    const Shape two = {2, shape.dim, shape.is_vector};
    store_eight(sums, two, 0, block, totals.product);
    store_eight(sums, two, 1, block, totals.gradient);
}

DEVICE void add_in_memory(float *sums, const Shape &shape, int64_t block, const Normalized &columns, bool is_first) {
    const Shape two = {is_first ? 0 : 2, shape.dim, shape.is_vector};
    Totals totals = {load_eight(sums, two, 0, block), load_eight(sums, two, 1, block)};
    add(totals, columns);
    store_totals(sums, shape, block, totals);
}

/* d * weight of a block of columns, and that times x^. */
DEVICE Totals weighted(const Normalized &columns, const Norm &norm, const Shape &shape, int64_t block) {
    const Eight weight = load_eight(norm.weight, {1, shape.dim, shape.is_vector}, 0, block);
    Totals scaled;
    for (int32_t k = 0; k < COLUMNS; k++) {
        scaled.gradient.of[k] = columns.gradient.of[k] * weight.of[k];
        scaled.product.of[k] = scaled.gradient.of[k] * columns.x.of[k];
    }
    return scaled;
}

/* The rows of a thread block in rounds, one sub-warp per row. */
template <typename T>
DEVICE void normalize_backward(const T *rows, const T *gradient, const Norm &norm, const Mask &mask, T *rows_gradient,
                               float *sums, int64_t rows_a_block, int32_t lanes, const Shape &shape) {
    const Place place = place_of_thread(lanes);
    const int64_t groups = blockDim.x / lanes, num_blocks = shape.num_blocks();
    const int64_t begin = blockIdx.x * rows_a_block, end = min(begin + rows_a_block, shape.num_rows);
    float *const own_sums = sums + (blockIdx.x * groups + place.group) * 2 * shape.dim;
    Totals totals = {};
    for (int64_t round = begin; round < end; round += groups) {
        /* Blocks are whole rounds. A sub-warp past the last row goes along, since sums need whole warps. */
        const int64_t row = round + place.group;
        Moments m = {0.0f, 0.0f};
        if (row < shape.num_rows) m = {norm.moments[2 * row], norm.moments[2 * row + 1]};
        Normalized own = {};
        float sum = 0.0f, product = 0.0f;
        for (int64_t b = place.lane; b < num_blocks; b += lanes) {
            const Normalized columns = read_block(rows, gradient, norm, mask, m, row, b, shape);
            if (b == place.lane)
                add(totals, own = columns);
            else
                add_in_memory(own_sums, shape, b, columns, round == begin);
            const Totals scaled = weighted(columns, norm, shape, b);
            sum += sum_of_eight(scaled.gradient);
            product += sum_of_eight(scaled.product);
        }
        const float mean_sum = sum_of_lanes(sum, lanes) / (float)shape.dim;
        const float mean_product = sum_of_lanes(product, lanes) / (float)shape.dim;
        for (int64_t b = place.lane; b < num_blocks; b += lanes) {
            const Normalized columns =
                b == place.lane ? own : read_block(rows, gradient, norm, mask, m, row, b, shape);
            Eight centered = weighted(columns, norm, shape, b).gradient;
            for (int32_t k = 0; k < COLUMNS; k++)
                centered.of[k] = (centered.of[k] - mean_sum - columns.x.of[k] * mean_product) * m.rstd;
            store_eight(rows_gradient, shape, row, b, centered);
        }
    }
    if (place.lane < num_blocks) store_totals(own_sums, shape, place.lane, totals);
}

/* The mask of a launch; one that is replayed in a captured step reads its epoch at epoch_of_step, else NULL. */
DEVICE Mask mask_of(const int64_t *node_id, uint32_t seed, uint32_t epoch, const uint32_t *epoch_of_step,
                    uint32_t stream, uint32_t threshold, float scale) {
    return {node_id, {seed, epoch_of_step ? *epoch_of_step : epoch, stream}, threshold, scale};
}

#define MASK_ROWS(T, suffix) \
    extern "C" __global__ void mask_rows_##suffix( \
        const T *values, const T *rectifier, const int64_t *node_id, uint32_t seed, uint32_t epoch, \
        const uint32_t *epoch_of_step, uint32_t stream, uint32_t threshold, float scale, T *out, int64_t num_rows, \
        int64_t dim, int32_t is_vector) { \
        mask_rows<T>(values, rectifier, mask_of(node_id, seed, epoch, epoch_of_step, stream, threshold, scale), out, \
                     {num_rows, dim, is_vector != 0}); \
    }
FOR_EACH_STORAGE(MASK_ROWS)

#define NORMALIZE_ROWS(T, suffix) \
    extern "C" __global__ void normalize_rows_##suffix( \
        const T *rows, const int64_t *node_id, uint32_t seed, uint32_t epoch, const uint32_t *epoch_of_step, \
        uint32_t stream, uint32_t threshold, float scale, const float *weight, const float *bias, float eps, \
        float *moments, T *out, int32_t lanes, int64_t num_rows, int64_t dim, int32_t is_vector) { \
        normalize_rows<T>(rows, {weight, bias, eps, moments}, \
                          mask_of(node_id, seed, epoch, epoch_of_step, stream, threshold, scale), out, lanes, \
                          {num_rows, dim, is_vector != 0}); \
    }
FOR_EACH_STORAGE(NORMALIZE_ROWS)

#define NORMALIZE_BACKWARD(T, suffix) \
    extern "C" __global__ void normalize_backward_##suffix( \
        const T *rows, const T *gradient, const int64_t *node_id, uint32_t seed, uint32_t epoch, \
        const uint32_t *epoch_of_step, uint32_t stream, uint32_t threshold, float scale, const float *weight, \
        const float *bias, float *moments, T *rows_gradient, float *sums, int64_t rows_a_block, int32_t lanes, \
        int64_t num_rows, int64_t dim, int32_t is_vector) { \
        normalize_backward<T>(rows, gradient, {weight, bias, 0.0f, moments}, \
                              mask_of(node_id, seed, epoch, epoch_of_step, stream, threshold, scale), rows_gradient, \
                              sums, rows_a_block, lanes, {num_rows, dim, is_vector != 0}); \
    }
FOR_EACH_STORAGE(NORMALIZE_BACKWARD)
