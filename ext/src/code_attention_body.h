/* Kernel body, compiled once per SIMD level by code_attention.c; integers, so that every level has the same bits.
 * A weight is high 2^LOW_BITS + low. Products of both parts with codes are summed in int32 over at most ENTRIES
 * entries, so that no sum overflows, and then in int64. */
#include "vector.h"

#include "code_lanes_body.h"

INLINE int64_t LEVEL(leaky)(int64_t score) { return score < 0 ? score / 5 : score; }

/* 2^WEIGHT_BITS exp(-distance), rounded. */
INLINE int32_t LEVEL(weight_of)(const code_attention *a, int64_t distance) {
    if (distance >= FARTHEST) return 0;
    const int64_t exponent = ((distance >> (SCORE_BITS - STEP_BITS)) * LOG2_E) >> TABLE_BITS;
    const int shift = (int)(exponent >> STEP_BITS) + 2 * TABLE_BITS - WEIGHT_BITS;
    const int64_t product = a->coarse[(exponent >> 10) & 1023] * a->fine[exponent & 1023];
    return (int32_t)((product + (1LL << (shift - 1))) >> shift);
}

INLINE int64_t LEVEL(largest_score)(const code_attention *a, int64_t begin, int64_t end, int64_t own, int64_t head) {
    int64_t largest = a->source[own * a->num_heads + head];
    for (int64_t e = begin; e < end; e++) {
        const int64_t score = a->source[a->indices[e] * a->num_heads + head];
        largest = score > largest ? score : largest;
    }
    return LEVEL(leaky)(a->target[own * a->num_heads + head] + largest);
}

/* Adds `count` weighted rows to the sums of COLUMNS vectors of columns from j on. */
INLINE void LEVEL(add_columns)(const int8_t *codes, int64_t row_bytes, const attended_row *rows, int64_t count,
                               int64_t j, int64_t dim, int64_t *sums) {
    vector_i32 high[COLUMNS] = {0}, low[COLUMNS] = {0};
    for (int64_t k = 0; k < count; k++) {
        const int8_t *row = codes + rows[k].index * row_bytes;
        if (k + AHEAD < count) __builtin_prefetch(codes + rows[k + AHEAD].index * row_bytes + j);
        for (int c = 0; c < COLUMNS; c++) {
            if (j + c * LANES >= dim) continue;
            const vector_i32 code = LEVEL(load_codes)(row, j + c * LANES, dim);
            high[c] += code * rows[k].high;
            low[c] += code * rows[k].low;
        }
    }
    for (int c = 0; c < COLUMNS; c++)
        for (int i = 0; i < LANES && j + c * LANES + i < dim; i++)
            sums[j + c * LANES + i] += (int64_t)high[c][i] * (1 << LOW_BITS) + low[c][i];
}

/* Weighs `count` entries from `e` on; an `e` before the entries is the row itself. Returns the sum of weights. */
INLINE int64_t LEVEL(weigh)(const code_attention *a, int64_t own, int64_t begin, int64_t e, int64_t count, int64_t head,
                            int64_t largest, attended_row *rows) {
    const int64_t target = a->target[own * a->num_heads + head];
    int64_t total = 0;
    for (int64_t k = 0; k < count; k++) {
        const int64_t u = e + k < begin ? own : a->indices[e + k];
        const int64_t score = LEVEL(leaky)(target + a->source[u * a->num_heads + head]);
        const int32_t weight = LEVEL(weight_of)(a, largest - score);
        rows[k] = (attended_row){u, weight >> LOW_BITS, weight & ((1 << LOW_BITS) - 1)};
        total += weight;
    }
    return total;
}

static int LEVEL(attend_row)(const code_attention *a, int64_t v, int64_t *sums, float *out) {
    const int64_t begin = a->indptr[v], end = a->indptr[v + 1], own = a->first + v, dim = a->dim / a->num_heads;
    attended_row rows[ENTRIES];
    if (begin < 0 || begin > end || end > a->num_entries) return 2;
    for (int64_t e = begin; e < end; e++)
        if (a->indices[e] < 0 || a->indices[e] >= a->num_codes) return 1;
    for (int64_t head = 0; head < a->num_heads; head++) {
        const int64_t largest = LEVEL(largest_score)(a, begin, end, own, head);
        int64_t total = 0;
        memset(sums, 0, (size_t)dim * sizeof(int64_t));
        for (int64_t e = begin - 1; e < end; e += ENTRIES) {
            const int64_t count = end - e < ENTRIES ? end - e : ENTRIES;
            total += LEVEL(weigh)(a, own, begin, e, count, head, largest, rows);
            for (int64_t j = 0; j < dim; j += COLUMNS * LANES)
                LEVEL(add_columns)(a->codes + head * dim, a->dim, rows, count, j, dim, sums);
        }
        for (int64_t j = 0; j < dim; j++) out[head * dim + j] = (float)((double)sums[j] / (double)total);
    }
    return 0;
}

/* <codes of a head, vector of a head> for both vectors. Products and sums are integers that float64 holds. */
static void LEVEL(score_row)(const code_attention *a, const double *vectors, int64_t u, int64_t *target,
                             int64_t *source) {
    const int64_t dim = a->dim / a->num_heads;
    for (int64_t head = 0; head < a->num_heads; head++) {
        const int8_t *row = a->codes + u * a->dim + head * dim;
        const double *first = vectors + head * dim, *second = first + a->dim;
        double sums[2][8] = {0};
        for (int64_t j = 0; j < dim; j += 8)
            for (int64_t k = 0; k < (dim - j < 8 ? dim - j : 8); k++) {
                sums[0][k] += first[j + k] * row[j + k];
                sums[1][k] += second[j + k] * row[j + k];
            }
        for (int k = 1; k < 8; k++) sums[0][0] += sums[0][k], sums[1][0] += sums[1][k];
        target[u * a->num_heads + head] = (int64_t)sums[0][0];
        source[u * a->num_heads + head] = (int64_t)sums[1][0];
    }
}
