/* Attention over rows of fields in exact integers: scores, and the weighted mean of neighbors' codes.
 *
 * Maths: that of ext/src/code_attention.h, operation by operation; all sums are exact, with one division.
 * Threads: one warp per row; in attend_rows one per row and head. It weighs 32 entries at a time, one per lane, and
 * adds their rows one after the other, four groups of 32 columns in registers; heads of more columns weigh again.
 * Determinism: integers have no order. */
#include "integer_codes.cuh"

#define SCORE_BITS 36
#define WEIGHT_BITS 23
#define TABLE_BITS 30
#define STEP_BITS 20
#define LOG2_E 1549082005LL            /* log2(e) 2^30 */
#define FARTHEST (17LL << SCORE_BITS) /* exp(-17) is less than half a unit of weights, 2^-24 */
#define COLUMNS 4

/* scores[u] = <codes of a head, vector of a head> for both vectors, in units of 2^-SCORE_BITS. */
extern "C" __global__ void score_rows(const uint32_t *fields, int32_t bits, int64_t field_words, int64_t num_rows,
                                      int32_t dim, int32_t num_heads, const int64_t *vectors, int64_t *target,
                                      int64_t *source) {
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE;
    if (row >= num_rows) return;
    const int32_t lane = lane_number(), head_dim = dim / num_heads;
    for (int32_t head = 0; head < num_heads; head++) {
        long long sums[2] = {0, 0};
        for (int32_t j = head * head_dim + lane; j < (head + 1) * head_dim; j += WARP_SIZE) {
            const long long code = field_of(fields + row * field_words, bits, j);
            for (int32_t k = 0; k < 2; k++) sums[k] += code * vectors[k * dim + j];
        }
        for (int32_t k = 0; k < 2; k++)
            for (int32_t step = WARP_SIZE / 2; step > 0; step /= 2)
                sums[k] += __shfl_xor_sync(FULL_WARP, sums[k], step);
        if (lane == 0) {
            target[row * num_heads + head] = sums[0];
            source[row * num_heads + head] = sums[1];
        }
    }
}

struct Attention {
    const int64_t *indptr;
    const int32_t *indices;
    const uint32_t *fields;
    int32_t bits;
    int64_t field_words;
    int32_t dim, num_heads;
    const int64_t *target, *source, *coarse, *fine;
};

DEVICE long long leaky(long long score) { return score < 0 ? score / 5 : score; }

/* 2^WEIGHT_BITS exp(-distance), rounded. */
DEVICE int32_t weight_of(const Attention &a, long long distance) {
    if (distance >= FARTHEST) return 0;
    const long long exponent = ((distance >> (SCORE_BITS - STEP_BITS)) * LOG2_E) >> TABLE_BITS;
    const int32_t shift = (int32_t)(exponent >> STEP_BITS) + 2 * TABLE_BITS - WEIGHT_BITS;
    const long long product = a.coarse[exponent >> 10 & 1023] * a.fine[exponent & 1023];
    return (int32_t)((product + (1LL << (shift - 1))) >> shift);
}

/* The row that entry e of row v names; the entry before the first one is the row itself. */
DEVICE int64_t entry_row(const Attention &a, int64_t v, int64_t e) { return e < a.indptr[v] ? v : a.indices[e]; }

/* All lanes of a warp: the largest source score of the row's entries and of itself. */
DEVICE long long largest_source(const Attention &a, int64_t v, int32_t head) {
    long long largest = a.source[v * a.num_heads + head];
    for (int64_t e = a.indptr[v] + lane_number(); e < a.indptr[v + 1]; e += WARP_SIZE) {
        const long long score = a.source[(int64_t)a.indices[e] * a.num_heads + head];
        largest = score > largest ? score : largest;
    }
    for (int32_t step = WARP_SIZE / 2; step > 0; step /= 2) {
        const long long other = __shfl_xor_sync(FULL_WARP, largest, step);
        largest = other > largest ? other : largest;
    }
    return largest;
}

/* All lanes of a warp: sums of weighted codes of up to COLUMNS groups of 32 columns from `first` on, and of weights. */
DEVICE long long add_weighted(const Attention &a, int64_t v, int32_t head, int32_t first, int32_t stop,
                              long long largest, long long (&sums)[COLUMNS]) {
    const int32_t lane = lane_number();
    const long long target = a.target[v * a.num_heads + head];
    long long total = 0;
    for (int64_t begin = a.indptr[v] - 1; begin < a.indptr[v + 1]; begin += WARP_SIZE) {
        const int64_t own = begin + lane, left = a.indptr[v + 1] - begin;
        const int64_t own_row = own < a.indptr[v + 1] ? entry_row(a, v, own) : v;
        const long long score = leaky(target + a.source[own_row * a.num_heads + head]);
        const int32_t own_weight = own < a.indptr[v + 1] ? weight_of(a, largest - score) : 0;
        total += own_weight;
        for (int32_t k = 0; k < (left < WARP_SIZE ? left : WARP_SIZE); k++) {
            const int64_t row = __shfl_sync(FULL_WARP, (long long)own_row, k);
            const int32_t weight = __shfl_sync(FULL_WARP, own_weight, k);
            for (int32_t c = 0; c < COLUMNS; c++) {
                const int32_t j = first + c * WARP_SIZE + lane;
                if (j < stop) sums[c] += (long long)weight * field_of(a.fields + row * a.field_words, a.bits, j);
            }
        }
    }
    for (int32_t step = WARP_SIZE / 2; step > 0; step /= 2) total += __shfl_xor_sync(FULL_WARP, total, step);
    return total;
}

/* Rows first_row .. num_rows - 1 of (num_rows, dim) `out`. */
extern "C" __global__ void attend_rows(int64_t first_row, int64_t num_rows, const int64_t *indptr,
                                       const int32_t *indices, const uint32_t *fields, int32_t bits,
                                       int64_t field_words, int32_t dim, int32_t num_heads, const int64_t *target,
                                       const int64_t *source, const int64_t *coarse, const int64_t *fine, float *out) {
    const int64_t number = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE;
    const int64_t v = first_row + number / num_heads;
    if (v >= num_rows) return;
    const Attention a = {indptr, indices, fields, bits, field_words, dim, num_heads, target, source, coarse, fine};
    const int32_t head = (int32_t)(number % num_heads), head_dim = dim / num_heads;
    const long long largest = leaky(a.target[v * num_heads + head] + largest_source(a, v, head));
    for (int32_t first = head * head_dim; first < (head + 1) * head_dim; first += COLUMNS * WARP_SIZE) {
        long long sums[COLUMNS] = {0, 0, 0, 0};
        const long long total = add_weighted(a, v, head, first, (head + 1) * head_dim, largest, sums);
        for (int32_t c = 0; c < COLUMNS; c++) {
            const int32_t j = first + c * WARP_SIZE + lane_number();
            if (j < (head + 1) * head_dim)
                out[v * dim + j] = __double2float_rn(__ddiv_rn((double)sums[c], (double)total));
        }
    }
}
