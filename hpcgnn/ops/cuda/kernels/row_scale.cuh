/* Zero point and step of a row, by the host's arithmetic, operation by operation (ext/src/quantization.c and
 * row_range_body.h): products are __fmul_rn and __dmul_rn, which no compiler fuses with a sum.
 *
 * A row is held by `width` neighboring lanes, a power of two. Sums need 16 of them: lane i adds the columns i, i + 16,
 * ... in that order, and lanes are then added by halves, as the host's sum of sixteen. Every lane gets every result. */
#ifndef HPCGNN_ROW_SCALE_CUH
#define HPCGNN_ROW_SCALE_CUH
#include "row_groups.cuh"

constexpr int SUMMING_LANES = 16, NUM_SPLITS = 3;
constexpr float LARGEST_MAGNITUDE = 1.6e38f; /* its range, and its zero point rounded down, stay finite in bf16 */
constexpr float LARGEST_SUMMED = 1e28f;      /* ranges above it are summed over columns in units of 1 / SUMMING_UNIT */
constexpr float SUMMING_UNIT = 0x1p-32f;
constexpr float LARGEST_INVERSE = 1e37f;     /* steps with a larger reciprocal divide instead */

/* The lanes that hold one row, and this one's number among them. */
struct row_lanes {
    int lane, width;
    uint32_t mask;
};

DEVICE row_lanes lanes_of_row(int width) {
    const int lane = static_cast<int>(threadIdx.x) % WARP_SIZE;
    const uint32_t all = width == WARP_SIZE ? FULL_WARP : (1u << width) - 1u;
    return {lane % width, width, all << lane / width * width};
}

struct row_range {
    float low, high;
    bool is_valid; /* finite, and small enough to have a zero point and a step */
};

/* How the columns of a row become codes: the parameters as the receiver reads them. */
struct row_scale {
    float zero_point, step, inverse;
    bool is_tiny;
    uint32_t parameters; /* bfloat16 bits, the zero point low */
};

DEVICE uint32_t bf16_down(float x) {
    const uint32_t bits = __float_as_uint(x);
    const bool is_cut_up = (bits & 0xffffu) && bits >> 31; /* truncation moves a negative value up */
    return ((bits >> 16) + (is_cut_up ? 1u : 0u)) & 0xffffu;
}

DEVICE uint32_t bf16_up(double x) {
    const float nearest = static_cast<float>(x);
    const uint32_t bits = __float_as_uint(nearest) + (static_cast<double>(nearest) < x ? 1u : 0u);
    return (bits + 0xffffu) >> 16;
}

DEVICE float bf16_value(uint32_t half) { return __uint_as_float(half << 16); }

DEVICE row_scale scale_of(uint32_t zero_point, uint32_t step) {
    row_scale scale;
    scale.zero_point = bf16_value(zero_point);
    scale.step = bf16_value(step);
    scale.inverse = scale.step == 0.0f ? 0.0f : __fdiv_rn(1.0f, scale.step);
    scale.is_tiny = scale.inverse > LARGEST_INVERSE;
    scale.parameters = zero_point | step << 16;
    return scale;
}

DEVICE row_scale scale_of_range(float low, float high, int bit_width) {
    const uint32_t zero_point = bf16_down(low);
    const double range = static_cast<double>(high) - static_cast<double>(bf16_value(zero_point));
    return scale_of(zero_point, bf16_up(__ddiv_rn(range, (1 << bit_width) - 1)));
}

DEVICE row_scale scale_of_line(double first, double last, int top) {
    const uint32_t zero_point = bf16_down(static_cast<float>(first));
    const double step = __ddiv_rn(last - static_cast<double>(bf16_value(zero_point)), top);
    const uint32_t bits = __float_as_uint(step > 0 ? static_cast<float>(step) : 0.0f);
    return scale_of(zero_point, (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* All lanes start at column 0, so that the sign of a row of zeros is that of its first. */
template <typename T> DEVICE row_range range_of(const T *row, int64_t dim, row_lanes lanes) {
    float low = load_f32(row, 0), high = low, none = 0.0f; /* NaN behind a value that is not finite */
    for (int64_t j = static_cast<int64_t>(lanes.lane) * GROUP; j < dim; j += lanes.width * GROUP) {
        const int num = dim - j < GROUP ? static_cast<int>(dim - j) : GROUP;
        uint32_t bits[GROUP];
        load_group(row, j, num, bits);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            if (i >= num) continue;
            const float x = __uint_as_float(bits[i]);
            low = x < low ? x : low;
            high = x > high ? x : high;
            none = fmaf(x, 0.0f, none);
        }
    }
    for (int step = lanes.width / 2; step; step /= 2) {
        const float lower = __shfl_xor_sync(lanes.mask, low, step), upper = __shfl_xor_sync(lanes.mask, high, step);
        low = lower < low ? lower : low;
        high = upper > high ? upper : high;
    }
    const bool is_finite = __all_sync(lanes.mask, none == 0.0f);
    return {low + 0.0f, high, is_finite && low >= -LARGEST_MAGNITUDE && high <= LARGEST_MAGNITUDE};
}

DEVICE double sum_of_sixteen(float x, row_lanes lanes) {
    return static_cast<double>(sum_of_lanes(x, SUMMING_LANES, lanes.mask));
}

/* A row of distances from its least value, in `unit`s. */
struct row_summary {
    double mean, most, sum;
    float low, unit;
};

DEVICE float distance_of(float x, float low, float unit) { return __fmul_rn(x - low, unit); }

template <typename T>
DEVICE row_summary summary_of(const T *row, int64_t dim, float low, float high, row_lanes lanes) {
    const float unit = high - low > LARGEST_SUMMED ? SUMMING_UNIT : 1.0f;
    float sum = 0.0f;
    for (int64_t j = lanes.lane; j < dim; j += SUMMING_LANES) sum += distance_of(load_f32(row, j), low, unit);
    const double total = sum_of_sixteen(sum, lanes);
    return {__ddiv_rn(total, static_cast<double>(dim)), static_cast<double>(__fmul_rn(high - low, unit)), total, low,
            unit};
}

/* The two centroids of a row split in two, at its mean or halfway from it to either end: the split that leaves the
 * least energy. */
template <typename T>
DEVICE row_scale centroid_scale(const T *row, int64_t dim, row_summary s, row_lanes lanes) {
    const float split[NUM_SPLITS] = {static_cast<float>(s.mean), static_cast<float>(__dmul_rn(s.mean + s.most, 0.5)),
                                     static_cast<float>(__dmul_rn(s.mean, 0.5))};
    float sum[NUM_SPLITS] = {0.0f, 0.0f, 0.0f}, num[NUM_SPLITS] = {0.0f, 0.0f, 0.0f};
    for (int64_t j = lanes.lane; j < dim; j += SUMMING_LANES) {
        const float distance = distance_of(load_f32(row, j), s.low, s.unit);
        for (int k = 0; k < NUM_SPLITS; k++) {
            sum[k] += distance > split[k] ? distance : 0.0f;
            num[k] += distance > split[k] ? 1.0f : 0.0f;
        }
    }
    double lower = s.mean, upper = s.mean, most_energy = __dmul_rn(s.sum, s.mean);
    for (int k = 0; k < NUM_SPLITS; k++) {
        const double above = sum_of_sixteen(sum[k], lanes), num_above = sum_of_sixteen(num[k], lanes);
        const double below = s.sum - above, num_below = static_cast<double>(dim) - num_above;
        if (num_above == 0 || num_below == 0) continue;
        const double energy = __ddiv_rn(__dmul_rn(above, above), num_above) +
                              __ddiv_rn(__dmul_rn(below, below), num_below);
        if (energy <= most_energy) continue;
        most_energy = energy;
        lower = __ddiv_rn(below, num_below);
        upper = __ddiv_rn(above, num_above);
    }
    const double low = static_cast<double>(s.low), unit = static_cast<double>(s.unit);
    return scale_of_line(low + __ddiv_rn(lower, unit), low + __ddiv_rn(upper, unit), 1);
}

/* The line zero_point + step * code that fits a row best, given the codes that its range would yield. */
template <typename T>
DEVICE row_scale fitted_scale(const T *row, int64_t dim, int bit_width, row_summary s, row_lanes lanes) {
    const float top = static_cast<float>((1 << bit_width) - 1), most = static_cast<float>(s.most);
    const float per_step = most > 0 ? __fdiv_rn(top, most) : 0.0f;
    const bool is_tiny = per_step > LARGEST_INVERSE;
    float sum = 0.0f, square = 0.0f, product = 0.0f;
    for (int64_t j = lanes.lane; j < dim; j += SUMMING_LANES) {
        const float distance = distance_of(load_f32(row, j), s.low, s.unit);
        const float scaled = is_tiny ? __fmul_rn(__fdiv_rn(distance, most), top) : __fmul_rn(distance, per_step);
        const float nearest = rintf(scaled), code = nearest < top ? nearest : top;
        sum += code;
        square += __fmul_rn(code, code);
        product += __fmul_rn(code, distance);
    }
    const double codes = sum_of_sixteen(sum, lanes), squares = sum_of_sixteen(square, lanes);
    const double products = sum_of_sixteen(product, lanes), num = static_cast<double>(dim);
    const double spread = __dmul_rn(num, squares) - __dmul_rn(codes, codes);
    const double slope = spread > 0 ? __ddiv_rn(__dmul_rn(num, products) - __dmul_rn(codes, s.sum), spread) : 0;
    const double start = __ddiv_rn(s.sum - __dmul_rn(slope, codes), num);
    const double low = static_cast<double>(s.low), unit = static_cast<double>(s.unit);
    return scale_of_line(low + __ddiv_rn(start, unit), low + __ddiv_rn(start + __dmul_rn(slope, top), unit),
                         (1 << bit_width) - 1);
}
#endif
