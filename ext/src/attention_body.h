/* Kernel body, compiled once per SIMD level by attention.c. */
#include "vector.h"

INLINE vector_f32 LEVEL(select)(vector_i32 is_first, vector_f32 first, vector_f32 second) {
    return (vector_f32)((is_first & (vector_i32)first) | (~is_first & (vector_i32)second));
}

/* e^x for x <= 0 to 2 units in the last place; 0 below the normal numbers, NaN for NaN. Cephes, expf.c. */
INLINE vector_f32 LEVEL(exponential)(vector_f32 x) {
    const vector_f32 shifted = x * 1.44269504088896341f + 0x1.8p23f; /* the addition rounds to an integer */
    const vector_f32 n = shifted - 0x1.8p23f;
    const vector_f32 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vector_f32 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    /* Unsigned, since the exponent overflows its bits for x far below 0, where the result is 0 whatever the scale. */
    const vector_f32 scale = (vector_f32)(((vector_u32)shifted - 0x4b400000u + 127u) << 23);
    return LEVEL(select)(x < -87.0f, (vector_f32){0}, (p * (r * r) + r + 1.0f) * scale);
}

/* Minus infinity, the score of an absent column, stays as it is whatever the slope; NaN does too. */
INLINE vector_f32 LEVEL(leaky)(vector_f32 score, float slope) {
    const vector_f32 none = (vector_f32){0} - __builtin_inff();
    return LEVEL(select)((score > 0.0f) | (score == none), score, slope * score);
}

/* Sixteen lanes, held in 16 / LANES vectors, as an array in which lane i belongs to head i % num_heads. */
typedef struct {
    float of[16];
} LEVEL(lanes);

INLINE float LEVEL(larger)(float x, float y) { return x > y ? x : y; }

/* Sum or maximum of the lanes of each head, given to all of its lanes. */
INLINE void LEVEL(fold_heads)(vector_f32 *parts, int num_heads, int is_sum) {
    LEVEL(lanes) lane;
    memcpy(lane.of, parts, sizeof lane);
    for (int width = 8; width >= num_heads; width /= 2)
        for (int i = 0; i < width; i++)
            lane.of[i] = is_sum ? lane.of[i] + lane.of[i + width] : LEVEL(larger)(lane.of[i], lane.of[i + width]);
    for (int i = num_heads; i < 16; i++) lane.of[i] = lane.of[i - num_heads];
    memcpy(parts, lane.of, sizeof lane);
}

/* target[v] + source[u] of the 16 / num_heads entries from e on; minus infinity behind the row's last entry. */
INLINE void LEVEL(gather_scores)(const entry_rows *a, int64_t e, int64_t end, const float *target, const float *source,
                                 int num_heads, vector_f32 *score) {
    LEVEL(lanes) lane;
    const int num_entries = 16 / num_heads;
    if (end - e < num_entries)
        for (int i = 0; i < 16; i++) lane.of[i] = -__builtin_inff();
    for (int i = 0; i < num_entries && e + i < end; i++)
        for (int k = 0; k < num_heads; k++)
            lane.of[i * num_heads + k] = target[k] + source[(int64_t)a->indices[e + i] * num_heads + k];
    memcpy(score, lane.of, sizeof lane);
}

/* A row whose heads divide 16: vectors of 16 values take whole entries. */
INLINE void LEVEL(softmax_row)(const entry_rows *a, int64_t v, const float *target, const float *source, float slope,
                               float *alpha, int num_heads) {
    const int64_t begin = a->begin[v], end = a->end[v], size = (end - begin) * num_heads;
    float *value = alpha + begin * num_heads;
    vector_f32 maximum[SIXTEEN], sum[SIXTEEN], score[SIXTEEN];
    for (int i = 0; i < SIXTEEN; i++) {
        maximum[i] = (vector_f32){0} - __builtin_inff();
        sum[i] = (vector_f32){0};
    }
    for (int64_t p = 0; p < size; p += 16) {
        LEVEL(gather_scores)(a, begin + p / num_heads, end, target + v * num_heads, source, num_heads, score);
        for (int i = 0; i < SIXTEEN && p + i * LANES < size; i++) {
            const vector_f32 e = LEVEL(leaky)(score[i], slope);
            maximum[i] = LEVEL(select)(e > maximum[i], e, maximum[i]);
            LEVEL(store_columns)(value, p + i * LANES, size, STORAGE_F32, e);
        }
    }
    LEVEL(fold_heads)(maximum, num_heads, 0);
    for (int i = 0; i < SIXTEEN; i++) /* all columns absent: any finite number keeps their powers at 0 */
        maximum[i] = LEVEL(select)(maximum[i] == -__builtin_inff(), (vector_f32){0}, maximum[i]);
    for (int64_t p = 0; p < size; p += 16)
        for (int i = 0; i < SIXTEEN && p + i * LANES < size; i++) {
            const int64_t j = p + i * LANES;
            const vector_f32 e = LEVEL(load_columns)(value, j, size, STORAGE_F32);
            vector_f32 power = LEVEL(exponential)(e - maximum[i]);
            LEVEL(store_columns)(value, j, size, STORAGE_F32, power);
            if (j + LANES > size) power = LEVEL(load_columns)(value, j, size, STORAGE_F32); /* nothing behind the end */
            sum[i] += power;
        }
    LEVEL(fold_heads)(sum, num_heads, 1);
    for (int i = 0; i < SIXTEEN; i++) sum[i] = LEVEL(select)(sum[i] == 0.0f, (vector_f32){0}, 1.0f / sum[i]);
    for (int64_t p = 0; p < size; p += 16)
        for (int i = 0; i < SIXTEEN && p + i * LANES < size; i++) {
            const int64_t j = p + i * LANES;
            const vector_f32 power = LEVEL(load_columns)(value, j, size, STORAGE_F32);
            LEVEL(store_columns)(value, j, size, STORAGE_F32, power * sum[i]);
        }
}

/* A row of any number of heads, one after the other. */
static void LEVEL(softmax_row_by_head)(const entry_rows *a, int64_t v, const float *target, const float *source,
                                       float slope, float *alpha) {
    const int64_t begin = a->begin[v], end = a->end[v], stride = a->num_heads, size = (end - begin) * stride;
    float *value = alpha + begin * stride;
    for (int64_t k = 0; k < stride; k++) {
        float maximum = -__builtin_inff();
        for (int64_t e = begin; e < end; e++) {
            const float score = target[v * stride + k] + source[a->indices[e] * stride + k];
            value[(e - begin) * stride + k] = score > 0 || score == -__builtin_inff() ? score : slope * score;
            maximum = LEVEL(larger)(value[(e - begin) * stride + k], maximum);
        }
        if (maximum == -__builtin_inff()) continue; /* all columns absent: their powers are 0 as they stand */
        for (int64_t i = k; i < size; i += stride) value[i] -= maximum;
    }
    for (int64_t j = 0; j < size; j += LANES) {
        const vector_f32 x = LEVEL(load_columns)(value, j, size, STORAGE_F32);
        LEVEL(store_columns)(value, j, size, STORAGE_F32, LEVEL(exponential)(x));
    }
    for (int64_t k = 0; k < stride; k++) {
        float sum = 0;
        for (int64_t i = k; i < size; i += stride) sum += value[i];
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        for (int64_t i = k; i < size; i += stride) value[i] *= inverse;
    }
}

INLINE void LEVEL(softmax_backward_row)(const entry_rows *a, int64_t v, const float *target, const float *source,
                                        float slope, const float *alpha, float *gradient, float *target_gradient,
                                        int num_heads) {
    const int64_t begin = a->begin[v], end = a->end[v], size = (end - begin) * num_heads;
    const float *weight = alpha + begin * num_heads;
    float *value = gradient + begin * num_heads;
    vector_f32 mean[SIXTEEN] = {{0}}, sum[SIXTEEN] = {{0}}, score[SIXTEEN];
    for (int64_t p = 0; p < size; p += 16)
        for (int i = 0; i < SIXTEEN && p + i * LANES < size; i++)
            mean[i] += LEVEL(load_columns)(weight, p + i * LANES, size, STORAGE_F32) *
                       LEVEL(load_columns)(value, p + i * LANES, size, STORAGE_F32);
    LEVEL(fold_heads)(mean, num_heads, 1);
    for (int64_t p = 0; p < size; p += 16) {
        LEVEL(gather_scores)(a, begin + p / num_heads, end, target + v * num_heads, source, num_heads, score);
        for (int i = 0; i < SIXTEEN && p + i * LANES < size; i++) {
            const int64_t j = p + i * LANES;
            const vector_f32 d_score = LEVEL(load_columns)(weight, j, size, STORAGE_F32) *
                                       (LEVEL(load_columns)(value, j, size, STORAGE_F32) - mean[i]);
            const vector_f32 d = LEVEL(select)(score[i] > 0.0f, d_score, slope * d_score);
            LEVEL(store_columns)(value, j, size, STORAGE_F32, d);
            sum[i] += d;
        }
    }
    LEVEL(fold_heads)(sum, num_heads, 1);
    memcpy(target_gradient + v * num_heads, sum, sizeof(float) * (size_t)num_heads);
}

static void LEVEL(softmax_backward_row_by_head)(const entry_rows *a, int64_t v, const float *target,
                                                const float *source, float slope, const float *alpha, float *gradient,
                                                float *target_gradient) {
    const int64_t stride = a->num_heads;
    for (int64_t k = 0; k < stride; k++) {
        float mean = 0, sum = 0;
        for (int64_t e = a->begin[v]; e < a->end[v]; e++) mean += alpha[e * stride + k] * gradient[e * stride + k];
        for (int64_t e = a->begin[v]; e < a->end[v]; e++) {
            const float score = target[v * stride + k] + source[a->indices[e] * stride + k];
            const float d_score = alpha[e * stride + k] * (gradient[e * stride + k] - mean);
            gradient[e * stride + k] = score > 0 ? d_score : slope * d_score;
            sum += gradient[e * stride + k];
        }
        target_gradient[v * stride + k] = sum;
    }
}

#define FOR_ROWS(v) for (int64_t v = a->task[t]; v < a->task[t + 1]; v++)
#define BY_HEADS(WITH_HEADS, OTHERWISE) \
    switch (a->num_heads) { \
        case 1: FOR_ROWS(v) WITH_HEADS(1); break; \
        case 2: FOR_ROWS(v) WITH_HEADS(2); break; \
        case 4: FOR_ROWS(v) WITH_HEADS(4); break; \
        case 8: FOR_ROWS(v) WITH_HEADS(8); break; \
        case 16: FOR_ROWS(v) WITH_HEADS(16); break; \
        default: FOR_ROWS(v) OTHERWISE; \
    }

static void LEVEL(softmax_task)(const entry_rows *a, int64_t t, const float *target, const float *source, float slope,
                                float *alpha) {
#define WITH_HEADS(n) LEVEL(softmax_row)(a, v, target, source, slope, alpha, n)
    BY_HEADS(WITH_HEADS, LEVEL(softmax_row_by_head)(a, v, target, source, slope, alpha))
#undef WITH_HEADS
}

static void LEVEL(softmax_backward_task)(const entry_rows *a, int64_t t, const float *target, const float *source,
                                         float slope, const float *alpha, float *gradient, float *target_gradient) {
#define WITH_HEADS(n) LEVEL(softmax_backward_row)(a, v, target, source, slope, alpha, gradient, target_gradient, n)
    BY_HEADS(WITH_HEADS, LEVEL(softmax_backward_row_by_head)(a, v, target, source, slope, alpha, gradient,
                                                             target_gradient))
#undef WITH_HEADS
}

INLINE void LEVEL(sum_row)(const entry_rows *a, int64_t v, const int64_t *entry_index, const float *value, float *out,
                           int num_heads) {
    float sum[16] = {0};
    for (int64_t e = a->begin[v]; e < a->end[v]; e++) {
        if (e + MAX_AHEAD < a->num_entries) __builtin_prefetch(value + entry_index[e + MAX_AHEAD] * num_heads);
        for (int k = 0; k < num_heads; k++) sum[k] += value[entry_index[e] * num_heads + k];
    }
    memcpy(out + v * num_heads, sum, sizeof(float) * (size_t)num_heads);
}

static void LEVEL(sum_row_by_head)(const entry_rows *a, int64_t v, const int64_t *entry_index, const float *value,
                                   float *out) {
    for (int64_t k = 0; k < a->num_heads; k++) {
        float sum = 0;
        for (int64_t e = a->begin[v]; e < a->end[v]; e++) sum += value[entry_index[e] * a->num_heads + k];
        out[v * a->num_heads + k] = sum;
    }
}

static void LEVEL(sum_entries_task)(const entry_rows *a, int64_t t, const int64_t *entry_index, const float *value,
                                    float *out) {
#define WITH_HEADS(n) LEVEL(sum_row)(a, v, entry_index, value, out, n)
    BY_HEADS(WITH_HEADS, LEVEL(sum_row_by_head)(a, v, entry_index, value, out))
#undef WITH_HEADS
}
#undef BY_HEADS

/* Sum of sixteen lanes in the order of sum_sixteen, without leaving the registers. */
INLINE float LEVEL(fold)(const vector_f32 *parts) {
#if LEVEL_LANES == 4
    const vector_f32 four = (parts[0] + parts[2]) + (parts[1] + parts[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
#else
#if LEVEL_LANES == 16
    const __m512 all = (__m512)parts[0];
    const __m256 eight = _mm512_castps512_ps256(all) + _mm512_extractf32x8_ps(all, 1);
#else
    const __m256 eight = (__m256)(parts[0] + parts[1]);
#endif
    const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    const __m128 two = four + _mm_movehl_ps(four, four);
    return two[0] + two[1];
#endif
}

/* <left, right> of num_columns columns, in float32; column j goes to partial sum j % 16. */
INLINE float LEVEL(dot)(const char *left, const char *right, int64_t num_columns, int left_storage, int right_storage) {
    vector_f32 parts[SIXTEEN] = {{0}};
    int64_t j = 0;
    for (; j + 16 <= num_columns; j += 16)
        for (int i = 0; i < SIXTEEN; i++)
            parts[i] += LEVEL(load)(left, j + i * LANES, left_storage) *
                        LEVEL(load)(right, j + i * LANES, right_storage);
    for (int i = 0; i < SIXTEEN && j + i * LANES < num_columns; i++)
        parts[i] += LEVEL(load_columns)(left, j + i * LANES, num_columns, left_storage) *
                    LEVEL(load_columns)(right, j + i * LANES, num_columns, right_storage);
    return LEVEL(fold)(parts);
}

INLINE int64_t LEVEL(entries_ahead)(int64_t bytes) {
    const int64_t fitting = bytes ? PREFETCH_BYTES / bytes : MAX_AHEAD;
    return fitting < MIN_AHEAD ? MIN_AHEAD : fitting > MAX_AHEAD ? MAX_AHEAD : fitting;
}

/* The row of entry e, if there is such an entry. */
INLINE void LEVEL(prefetch_row)(const entry_rows *a, int64_t e, const head_rows *rows, int64_t bytes) {
    if (e >= a->num_entries) return;
    const char *row = (const char *)rows->rows + a->indices[e] * bytes;
    for (int64_t b = 0; b < bytes; b += CACHE_LINE) __builtin_prefetch(row + b);
}

INLINE void LEVEL(product_row)(const entry_rows *a, int64_t v, const head_rows *left, const head_rows *right,
                               float *out, int storage) {
    const int64_t head_bytes = left->head_dim * storage_bytes(storage), ahead = LEVEL(entries_ahead)(row_bytes(right));
    const char *left_row = row_at(left, v);
    for (int64_t e = a->begin[v]; e < a->end[v]; e++) {
        LEVEL(prefetch_row)(a, e + ahead, right, row_bytes(right));
        const char *right_row = row_at(right, a->indices[e]);
        for (int64_t k = 0; k < a->num_heads; k++)
            out[e * a->num_heads + k] = LEVEL(dot)(left_row + k * head_bytes, right_row + k * head_bytes,
                                                   left->head_dim, storage, storage);
    }
}

static void LEVEL(product_task)(const entry_rows *a, int64_t t, const head_rows *left, const head_rows *right,
                                float *out) {
    switch (right->storage) {
        case STORAGE_F32: FOR_ROWS(v) LEVEL(product_row)(a, v, left, right, out, STORAGE_F32); break;
        case STORAGE_BF16: FOR_ROWS(v) LEVEL(product_row)(a, v, left, right, out, STORAGE_BF16); break;
        case STORAGE_F16: FOR_ROWS(v) LEVEL(product_row)(a, v, left, right, out, STORAGE_F16); break;
    }
}

/* sum[k][j] += weight[e][first + k] * shared[u][column + j] for some entries, columns and heads; `num_heads`,
 * `num_vectors` and `storage` are constants. */
INLINE void LEVEL(add_entries)(const entry_rows *a, int64_t e, int64_t end, const float *weight, const head_rows *shared,
                               int64_t column, int64_t j, float (*sum)[PIECE_COLUMNS], int num_heads, int num_vectors,
                               int storage) {
    const int64_t bytes = shared->head_dim * storage_bytes(storage), dim = shared->head_dim;
    vector_f32 part[HEADS_AT_ONCE][2];
    for (int k = 0; k < num_heads; k++)
        for (int i = 0; i < num_vectors; i++) part[k][i] = LEVEL(load_f32)(sum[k] + j + i * LANES);
    for (; e < end; e++) {
        const char *row = (const char *)shared->rows + a->indices[e] * bytes;
        for (int i = 0; i < num_vectors; i++) {
            const int64_t at = column + j + i * LANES;
            const vector_f32 x = num_vectors > 1 ? LEVEL(load)(row, at, storage)
                                                 : LEVEL(load_columns)(row, at, dim, storage);
            for (int k = 0; k < num_heads; k++) part[k][i] += weight[e * a->num_heads + k] * x;
        }
    }
    for (int k = 0; k < num_heads; k++)
        for (int i = 0; i < num_vectors; i++) LEVEL(store)(sum[k] + j + i * LANES, 0, STORAGE_F32, part[k][i]);
}

/* Up to HEADS_AT_ONCE heads of one row, from head `first` on. */
INLINE void LEVEL(sums_of_heads)(const entry_rows *a, int64_t v, const float *weight, const head_rows *shared,
                                 const head_rows *by_head, int64_t first, int num_heads, int storage) {
    const int64_t dim = shared->head_dim, bytes = dim * storage_bytes(storage), begin = a->begin[v], end = a->end[v];
    for (int64_t column = 0; column < dim; column += PIECE_COLUMNS) {
        const int64_t width = dim - column < PIECE_COLUMNS ? dim - column : PIECE_COLUMNS;
        float sum[HEADS_AT_ONCE][PIECE_COLUMNS] = {{0}};
        for (int64_t e = begin; e < end; e += PIECE_ENTRIES) {
            const int64_t stop = e + PIECE_ENTRIES < end ? e + PIECE_ENTRIES : end;
            if (!first && !column)
                for (int64_t next = stop; next < stop + stop - e; next++)
                    LEVEL(prefetch_row)(a, next, shared, bytes);
            int64_t j = 0;
            for (; j + 2 * LANES <= width; j += 2 * LANES)
                LEVEL(add_entries)(a, e, stop, weight + first, shared, column, j, sum, num_heads, 2, storage);
            for (; j < width; j += LANES)
                LEVEL(add_entries)(a, e, stop, weight + first, shared, column, j, sum, num_heads, 1, storage);
        }
        for (int k = 0; k < num_heads; k++)
            for (int64_t j = 0; j < width; j += LANES)
                LEVEL(store_columns)(row_of_head(by_head, first + k, v), column + j, dim, storage,
                                     LEVEL(load_f32)(sum[k] + j));
    }
}

INLINE void LEVEL(sums_by_head_row)(const entry_rows *a, int64_t v, const float *weight, const head_rows *shared,
                                    const head_rows *by_head, int storage) {
    int64_t k = 0;
    for (; k + HEADS_AT_ONCE <= a->num_heads; k += HEADS_AT_ONCE)
        LEVEL(sums_of_heads)(a, v, weight, shared, by_head, k, HEADS_AT_ONCE, storage);
    for (; k < a->num_heads; k++) LEVEL(sums_of_heads)(a, v, weight, shared, by_head, k, 1, storage);
}

#define BY_STORAGE(storage, ROW) \
    switch (storage) { \
        case STORAGE_F32: FOR_ROWS(v) ROW(STORAGE_F32); break; \
        case STORAGE_BF16: FOR_ROWS(v) ROW(STORAGE_BF16); break; \
        case STORAGE_F16: FOR_ROWS(v) ROW(STORAGE_F16); break; \
    }

static void LEVEL(sums_by_head_task)(const entry_rows *a, int64_t t, const float *weight, const head_rows *shared,
                                     const head_rows *by_head) {
#define ROW(storage) LEVEL(sums_by_head_row)(a, v, weight, shared, by_head, storage)
    BY_STORAGE(shared->storage, ROW)
#undef ROW
}

/* <by_head[first + k][v], shared row> for num_heads heads, in the order of `dot`. */
INLINE void LEVEL(dots_of_heads)(const head_rows *by_head, int64_t v, int64_t first, const char *row, float *out,
                                 int num_heads, int storage) {
    const int64_t dim = by_head->head_dim;
    vector_f32 parts[HEADS_AT_ONCE][SIXTEEN] = {{{0}}};
    const char *left[HEADS_AT_ONCE];
    for (int k = 0; k < num_heads; k++) left[k] = row_of_head(by_head, first + k, v);
    int64_t j = 0;
    for (; j + 16 <= dim; j += 16)
        for (int i = 0; i < SIXTEEN; i++) {
            const vector_f32 x = LEVEL(load)(row, j + i * LANES, storage);
            for (int k = 0; k < num_heads; k++) parts[k][i] += LEVEL(load)(left[k], j + i * LANES, storage) * x;
        }
    for (int i = 0; i < SIXTEEN && j + i * LANES < dim; i++) {
        const vector_f32 x = LEVEL(load_columns)(row, j + i * LANES, dim, storage);
        for (int k = 0; k < num_heads; k++)
            parts[k][i] += LEVEL(load_columns)(left[k], j + i * LANES, dim, storage) * x;
    }
    for (int k = 0; k < num_heads; k++) out[first + k] = LEVEL(fold)(parts[k]);
}

INLINE void LEVEL(products_by_head_row)(const entry_rows *a, int64_t v, const head_rows *by_head,
                                        const head_rows *shared, float *out, int storage) {
    const int64_t bytes = shared->head_dim * storage_bytes(storage), ahead = LEVEL(entries_ahead)(bytes);
    for (int64_t e = a->begin[v]; e < a->end[v]; e++) {
        LEVEL(prefetch_row)(a, e + ahead, shared, bytes);
        const char *row = (const char *)shared->rows + a->indices[e] * bytes;
        int64_t k = 0;
        for (; k + HEADS_AT_ONCE <= a->num_heads; k += HEADS_AT_ONCE)
            LEVEL(dots_of_heads)(by_head, v, k, row, out + e * a->num_heads, HEADS_AT_ONCE, storage);
        for (; k < a->num_heads; k++) LEVEL(dots_of_heads)(by_head, v, k, row, out + e * a->num_heads, 1, storage);
    }
}

static void LEVEL(products_by_head_task)(const entry_rows *a, int64_t t, const head_rows *by_head,
                                         const head_rows *shared, float *out) {
#define ROW(storage) LEVEL(products_by_head_row)(a, v, by_head, shared, out, storage)
    BY_STORAGE(shared->storage, ROW)
#undef ROW
}

/* Columns j to j + num_vectors * LANES - 1 of the sum of one row. */
INLINE void LEVEL(sum_of_heads)(const entry_rows *a, int64_t v, const float *weight, const head_rows *by_head,
                                const head_rows *shared, int64_t j, int num_vectors, int storage) {
    const int64_t dim = by_head->head_dim;
    vector_f32 sum[8];
    for (int i = 0; i < num_vectors; i++) sum[i] = (vector_f32){0};
    for (int64_t e = a->begin[v]; e < a->end[v]; e++)
        for (int64_t k = 0; k < a->num_heads; k++) {
            const char *row = row_of_head(by_head, k, a->indices[e]);
            const float of_head = weight[e * a->num_heads + k];
            for (int i = 0; i < num_vectors; i++)
                sum[i] += of_head * (num_vectors > 1 ? LEVEL(load)(row, j + i * LANES, storage)
                                                     : LEVEL(load_columns)(row, j, dim, storage));
        }
    char *out = (char *)shared->rows + v * dim * storage_bytes(storage);
    for (int i = 0; i < num_vectors; i++) LEVEL(store_columns)(out, j + i * LANES, dim, storage, sum[i]);
}

INLINE void LEVEL(sum_over_heads_row)(const entry_rows *a, int64_t v, const float *weight, const head_rows *by_head,
                                      const head_rows *shared, int storage) {
    int64_t j = 0;
    for (; j + 8 * LANES <= shared->head_dim; j += 8 * LANES)
        LEVEL(sum_of_heads)(a, v, weight, by_head, shared, j, 8, storage);
    for (; j < shared->head_dim; j += LANES) LEVEL(sum_of_heads)(a, v, weight, by_head, shared, j, 1, storage);
}

static void LEVEL(sum_over_heads_task)(const entry_rows *a, int64_t t, const float *weight, const head_rows *by_head,
                                       const head_rows *shared) {
#define ROW(storage) LEVEL(sum_over_heads_row)(a, v, weight, by_head, shared, storage)
    BY_STORAGE(by_head->storage, ROW)
#undef ROW
}
#undef BY_STORAGE
#undef FOR_ROWS

INLINE void LEVEL(score_row)(const head_rows *h, int64_t u, int64_t num_vectors, const float *vectors, float *score,
                             int storage) {
    const int64_t dim = h->num_heads * h->head_dim, size = storage_bytes(storage);
    for (int64_t k = 0; k < num_vectors; k++)
        for (int64_t head = 0; head < h->num_heads; head++)
            score[(k * h->num_rows + u) * h->num_heads + head] =
                LEVEL(dot)(row_at(h, u) + head * h->head_dim * size,
                           (const char *)(vectors + k * dim + head * h->head_dim), h->head_dim, storage, STORAGE_F32);
}

#define FOR_RANGE(u) for (int64_t u = first; u < end; u++)

static void LEVEL(score_range)(const head_rows *h, int64_t first, int64_t end, int64_t num_vectors,
                               const float *vectors, float *score) {
    switch (h->storage) {
        case STORAGE_F32: FOR_RANGE(u) LEVEL(score_row)(h, u, num_vectors, vectors, score, STORAGE_F32); break;
        case STORAGE_BF16: FOR_RANGE(u) LEVEL(score_row)(h, u, num_vectors, vectors, score, STORAGE_BF16); break;
        case STORAGE_F16: FOR_RANGE(u) LEVEL(score_row)(h, u, num_vectors, vectors, score, STORAGE_F16); break;
    }
}

/* gradient[u] += sum over k of score_gradient[k][u] * vectors[k]; partial[k] += score_gradient[k][u] * z[u]. */
INLINE void LEVEL(score_backward_row)(const head_rows *z, const head_rows *gradient, int64_t u, int64_t num_vectors,
                                      const float *vectors, const float *score_gradient, float *partial, int storage) {
    const int64_t head_dim = z->head_dim, dim = z->num_heads * head_dim, size = storage_bytes(storage);
    for (int64_t head = 0; head < z->num_heads; head++) {
        const char *row = row_at(z, u) + head * head_dim * size;
        char *gradient_row = row_at(gradient, u) + head * head_dim * size;
        for (int64_t j = 0; j < head_dim; j += LANES) {
            const vector_f32 x = LEVEL(load_columns)(row, j, head_dim, storage);
            vector_f32 sum = LEVEL(load_columns)(gradient_row, j, head_dim, storage);
            for (int64_t k = 0; k < num_vectors; k++) {
                const float d = score_gradient[(k * z->num_rows + u) * z->num_heads + head];
                float *own = partial + k * dim + head * head_dim;
                sum += d * LEVEL(load_columns)(vectors + k * dim + head * head_dim, j, head_dim, STORAGE_F32);
                LEVEL(store_columns)(own, j, head_dim, STORAGE_F32,
                                     LEVEL(load_columns)(own, j, head_dim, STORAGE_F32) + d * x);
            }
            LEVEL(store_columns)(gradient_row, j, head_dim, storage, sum);
        }
    }
}

/* Columns from j on of partial[k] += score_gradient[k][u] * z[u], for the rows u from first to end - 1 and num_sums
 * vectors k from `vector` on; `num_sums` and `num_parts`, of LANES columns, are constants. */
INLINE void LEVEL(add_rows)(const head_rows *z, int64_t first, int64_t end, int64_t head, int64_t vector, int64_t j,
                            const float *score_gradient, float *partial, int num_sums, int num_parts, int storage) {
    const int64_t head_dim = z->head_dim, at = head * head_dim, dim = z->num_heads * head_dim;
    vector_f32 sum[HEADS_AT_ONCE][2];
    for (int k = 0; k < num_sums; k++)
        for (int i = 0; i < num_parts; i++)
            sum[k][i] = LEVEL(load_columns)(partial + (vector + k) * dim + at, j + i * LANES, head_dim, STORAGE_F32);
    for (int64_t u = first; u < end; u++) {
        const char *row = row_at(z, u) + at * storage_bytes(storage);
        for (int i = 0; i < num_parts; i++) {
            const vector_f32 x = num_parts > 1 ? LEVEL(load)(row, j + i * LANES, storage)
                                               : LEVEL(load_columns)(row, j, head_dim, storage);
            for (int k = 0; k < num_sums; k++)
                sum[k][i] += score_gradient[((vector + k) * z->num_rows + u) * z->num_heads + head] * x;
        }
    }
    for (int k = 0; k < num_sums; k++)
        for (int i = 0; i < num_parts; i++)
            LEVEL(store_columns)(partial + (vector + k) * dim + at, j + i * LANES, head_dim, STORAGE_F32, sum[k][i]);
}

/* All columns of one head, of num_sums vectors. */
INLINE void LEVEL(add_rows_of_head)(const head_rows *z, int64_t first, int64_t end, int64_t head, int64_t vector,
                                    const float *score_gradient, float *partial, int num_sums, int storage) {
    int64_t j = 0;
    for (; j + 2 * LANES <= z->head_dim; j += 2 * LANES)
        LEVEL(add_rows)(z, first, end, head, vector, j, score_gradient, partial, num_sums, 2, storage);
    for (; j < z->head_dim; j += LANES)
        LEVEL(add_rows)(z, first, end, head, vector, j, score_gradient, partial, num_sums, 1, storage);
}

/* `partial` of the rows from first to end - 1, few enough to stay in the cache from one head to the next. */
INLINE void LEVEL(vectors_backward)(const head_rows *z, int64_t first, int64_t end, int64_t num_vectors,
                                    const float *score_gradient, float *partial, int storage) {
#define ADD(n) LEVEL(add_rows_of_head)(z, first, end, head, k, score_gradient, partial, n, storage)
    for (int64_t head = 0; head < z->num_heads; head++) {
        int64_t k = 0;
        for (; k + HEADS_AT_ONCE <= num_vectors; k += HEADS_AT_ONCE) ADD(HEADS_AT_ONCE);
        for (; k < num_vectors; k++) ADD(1);
    }
#undef ADD
}

static void LEVEL(score_backward_range)(const head_rows *z, const head_rows *gradient, int64_t first, int64_t end,
                                        int64_t num_vectors, const float *vectors, const float *score_gradient,
                                        float *partial) {
    const int64_t last = end < gradient->num_rows ? end : gradient->num_rows, split = last < first ? first : last;
    memset(partial, 0, sizeof(float) * (size_t)(num_vectors * z->num_heads * z->head_dim));
#define ROW(storage) LEVEL(score_backward_row)(z, gradient, u, num_vectors, vectors, score_gradient, partial, storage)
#define ROWS(storage) \
    LEVEL(vectors_backward)(z, u, u + PIECE_ENTRIES < end ? u + PIECE_ENTRIES : end, num_vectors, score_gradient, \
                            partial, storage)
#define WITH_AND_WITHOUT_GRADIENT(storage) \
    for (int64_t u = first; u < split; u++) ROW(storage); \
    for (int64_t u = split; u < end; u += PIECE_ENTRIES) ROWS(storage)
    switch (z->storage) {
        case STORAGE_F32: WITH_AND_WITHOUT_GRADIENT(STORAGE_F32); break;
        case STORAGE_BF16: WITH_AND_WITHOUT_GRADIENT(STORAGE_BF16); break;
        case STORAGE_F16: WITH_AND_WITHOUT_GRADIENT(STORAGE_F16); break;
    }
#undef ROW
#undef ROWS
#undef WITH_AND_WITHOUT_GRADIENT
}
#undef FOR_RANGE
