/* Kernel body, compiled once per SIMD level by pointwise.c. Columns are taken in groups of sixteen, the last of a row
 * with fewer; `storage`, `steps` and `is_whole` (a group of all sixteen) are constants at every call. */
#include "vector.h"

#include "philox_body.h"

typedef struct {
    vector_f32 of[SIXTEEN];
} LEVEL(f32_group);
#undef group
#define group LEVEL(f32_group)
#undef EACH_VECTOR
#define EACH_VECTOR(k) _Pragma("GCC unroll 4") for (int k = 0; k < SIXTEEN; k++)

/* Makes CALL for the groups of columns first .. stop-1, with j at a group's first column. */
#undef EACH_GROUP
#define EACH_GROUP(first, stop, CALL) \
    do { \
        int64_t j = first; \
        for (const int is_whole = 1; j + 16 <= (stop); j += 16) CALL; \
        for (const int is_whole = 0; j < (stop); j += 16) CALL; \
    } while (0)

#undef EACH_ROW
#define EACH_ROW(r, num_rows) _Pragma("GCC unroll 4") for (int r = 0; r < (num_rows); r++)

/* Columns j .. j+15; those from `dim` on are neither read nor written, and read as zero. */
INLINE group LEVEL(load_group)(const void *row, int64_t j, int64_t dim, int storage, int is_whole) {
    group x;
    EACH_VECTOR(k) {
        const int64_t at = j + k * LANES;
        if (is_whole)
            x.of[k] = LEVEL(load)(row, at, storage);
        else
            x.of[k] = at < dim ? LEVEL(load_columns)(row, at, dim, storage) : (vector_f32){0};
    }
    return x;
}

INLINE void LEVEL(store_group)(void *row, int64_t j, int64_t dim, int storage, int is_whole, group x) {
    EACH_VECTOR(k) {
        const int64_t at = j + k * LANES;
        if (is_whole)
            LEVEL(store)(row, at, storage, x.of[k]);
        else if (at < dim)
            LEVEL(store_columns)(row, at, dim, storage, x.of[k]);
    }
}

INLINE void LEVEL(fetch)(const char *row, int64_t j, int storage, int64_t ahead) {
    __builtin_prefetch(row + j * (storage == STORAGE_F32 ? 4 : 2) + ahead);
}

/* Loads a group for the first time and prefetches what follows: if rows and result have the same offsets in their
 * pages, a load may wait for stores that it does not depend on, and its cache miss would begin late. */
INLINE group LEVEL(load_new)(const char *row, int64_t j, int64_t dim, int storage, int is_whole) {
    LEVEL(fetch)(row, j, storage, PREFETCH_BYTES);
    return LEVEL(load_group)(row, j, dim, storage, is_whole);
}

/* Reads lines early that will be stored in parts; whole lines need not be read. */
INLINE void LEVEL(expect_stores)(char *row, int64_t j, int storage) {
    if (LANES < 16) __builtin_prefetch(row + j * (storage == STORAGE_F32 ? 4 : 2) + STORE_AHEAD, 1);
}

/* v where is_kept is all ones, 0 where it is zero. */
INLINE vector_f32 LEVEL(masked)(vector_f32 v, vector_i32 is_kept) { return (vector_f32)((vector_i32)v & is_kept); }

INLINE void LEVEL(add_columns)(const char *row, int64_t j, int64_t dim, int storage, int is_whole, group *sum) {
    const group x = LEVEL(load_group)(row, j, dim, storage, is_whole);
    EACH_VECTOR(k) sum->of[k] += x.of[k];
}

INLINE void LEVEL(add_centered_squares)(const void *row, int64_t j, int64_t dim, int storage, int is_whole, float mean,
                                        group *sum) {
    const group x = LEVEL(load_group)(row, j, dim, storage, is_whole);
    vector_i32 lane = {0};
    for (int i = 0; i < LANES; i++) lane[i] = i;
    EACH_VECTOR(k) {
        vector_f32 centered = x.of[k] - mean;
        if (!is_whole) centered = LEVEL(masked)(centered, lane + k * LANES < (int32_t)(dim - j));
        sum->of[k] += centered * centered;
    }
}

/* Mean, then 1 / sqrt(variance + eps) from centered squares: no cancellation where the mean is large. The sums of a row
 * are long chains of additions, so num_rows rows, a constant, are summed side by side. */
INLINE void LEVEL(moments_of)(const activation *a, int64_t i, int storage, int num_rows) {
    const int64_t dim = a->dim, row_bytes = dim * (storage == STORAGE_F32 ? 4 : 2);
    const char *row = (const char *)a->rows + i * row_bytes;
    group sum[MOMENTS_TOGETHER] = {{{{0}}}}, squares[MOMENTS_TOGETHER] = {{{{0}}}};
    float mean[MOMENTS_TOGETHER];
    EACH_GROUP(0, dim, EACH_ROW(r, num_rows) LEVEL(add_columns)(row + r * row_bytes, j, dim, storage, is_whole, &sum[r]));
    EACH_ROW(r, num_rows) mean[r] = LEVEL(sum_sixteen)(sum[r].of) / (float)dim;
    EACH_GROUP(0, dim, EACH_ROW(r, num_rows) LEVEL(add_centered_squares)(row + r * row_bytes, j, dim, storage, is_whole,
                                                                         mean[r], &squares[r]));
    EACH_ROW(r, num_rows) {
        a->moments[2 * (i + r)] = mean[r];
        a->moments[2 * (i + r) + 1] = 1.0f / sqrtf(LEVEL(sum_sixteen)(squares[r].of) / (float)dim + a->eps);
    }
}

/* Moments of rows first .. end-1, in a separate function, which is thus compiled only once for all steps. */
INLINE void LEVEL(moments_of_all)(const activation *a, int64_t first, int64_t end, int storage) {
    int64_t i = first;
    for (; i + MOMENTS_TOGETHER <= end; i += MOMENTS_TOGETHER) LEVEL(moments_of)(a, i, storage, MOMENTS_TOGETHER);
    for (; i < end; i++) LEVEL(moments_of)(a, i, storage, 1);
}

static __attribute__((noinline)) void LEVEL(find_moments)(const activation *a, int64_t first, int64_t end) {
    if (a->storage == STORAGE_F32)
        LEVEL(moments_of_all)(a, first, end, STORAGE_F32);
    else if (a->storage == STORAGE_BF16)
        LEVEL(moments_of_all)(a, first, end, STORAGE_BF16);
    else
        LEVEL(moments_of_all)(a, first, end, STORAGE_F16);
}

/* Draws of row i from column j on, at most DRAWN_COLUMNS. Not inlined, as it would fill the instruction cache. */
static __attribute__((noinline)) void LEVEL(draw_columns)(const activation *a, int64_t i, int64_t j,
                                                          vector_u32 *draws) {
    const int64_t left = a->dim - j;
    LEVEL(fill_draws)(&a->schedule, a->node_id[i], a->first_column + j, left < DRAWN_COLUMNS ? left : DRAWN_COLUMNS, 0,
                      draws);
}

/* v, scaled if `steps` drop, where an element passes (u > 0 or NaN, and not dropped); elsewhere 0. */
INLINE group LEVEL(pass)(group v, group u, const vector_u32 *draws, const activation *a, int steps) {
    EACH_VECTOR(k) {
        if (steps & DROP) {
            const vector_i32 is_kept = (vector_i32)draws[k] >= (int32_t)a->threshold;
            v.of[k] = LEVEL(masked)(v.of[k] * a->scale, is_kept);
        }
        if (steps & RECTIFY) v.of[k] = LEVEL(masked)(v.of[k], ~(u.of[k] <= 0.0f));
    }
    return v;
}

/* The normalized row x^ = (x - mean) * rstd, moments = {mean, rstd}. */
INLINE group LEVEL(normalize)(group x, const float *moments) {
    EACH_VECTOR(k) x.of[k] = (x.of[k] - moments[0]) * moments[1];
    return x;
}

INLINE group LEVEL(scale_and_shift)(group x, group weight, const float *bias, int64_t j, int64_t dim, int is_whole) {
    const group shift = LEVEL(load_group)(bias, j, dim, STORAGE_F32, is_whole);
    EACH_VECTOR(k) x.of[k] = x.of[k] * weight.of[k] + shift.of[k];
    return x;
}

INLINE void LEVEL(activate_group)(const activation *a, const char *row, const float *moments, const vector_u32 *draws,
                                  int64_t j, char *out, int storage, int steps, int is_whole) {
    group u = steps & NORMALIZE ? LEVEL(load_group)(row, j, a->dim, storage, is_whole)
                                : LEVEL(load_new)(row, j, a->dim, storage, is_whole);
    LEVEL(expect_stores)(out, j, storage);
    if (steps & NORMALIZE) {
        LEVEL(fetch)(row, j, storage, ROWS_TOGETHER * a->dim * (storage == STORAGE_F32 ? 4 : 2));
        const group weight = LEVEL(load_group)(a->weight, j, a->dim, STORAGE_F32, is_whole);
        u = LEVEL(scale_and_shift)(LEVEL(normalize)(u, moments), weight, a->bias, j, a->dim, is_whole);
    }
    LEVEL(store_group)(out, j, a->dim, storage, is_whole, LEVEL(pass)(u, u, draws, a, steps));
}

INLINE void LEVEL(activate_row)(const activation *a, int64_t i, void *out, int storage, int steps) {
    const int64_t dim = a->dim, offset = i * dim * (storage == STORAGE_F32 ? 4 : 2);
    const char *row = (const char *)a->rows + offset;
    char *out_row = (char *)out + offset;
    const float moments[2] = {steps & NORMALIZE ? a->moments[2 * i] : 0.0f,
                              steps & NORMALIZE ? a->moments[2 * i + 1] : 1.0f};
    vector_u32 draws[DRAWN_COLUMNS / LANES];
    for (int64_t start = 0; start < dim; start += DRAWN_COLUMNS) {
        const int64_t stop = start + DRAWN_COLUMNS < dim ? start + DRAWN_COLUMNS : dim;
        if (steps & DROP) LEVEL(draw_columns)(a, i, start, draws);
        EACH_GROUP(start, stop, LEVEL(activate_group)(a, row, moments, draws + (j - start) / LANES, j, out_row, storage,
                                                      steps, is_whole));
    }
}

/* Moments of several rows first. */
INLINE void LEVEL(activate_all)(const activation *a, int64_t first, int64_t stop, void *out, int storage, int steps) {
    for (int64_t start = first; start < stop; start += ROWS_TOGETHER) {
        const int64_t end = start + ROWS_TOGETHER < stop ? start + ROWS_TOGETHER : stop;
        if (steps & NORMALIZE) LEVEL(find_moments)(a, start, end);
        for (int64_t i = start; i < end; i++) LEVEL(activate_row)(a, i, out, storage, steps);
    }
}

/* What a row's gradient is made of while its columns are read: d the gradient of u, x^ the normalized row. */
typedef struct {
    float *weight_sum, *bias_sum; /* sums over the range's rows of d * x^ and d */
    float *scaled;                /* d * weight of this row */
    group sum, product;           /* sums over the row's columns of d * weight and d * weight * x^ */
} LEVEL(row_sums);

INLINE void LEVEL(add_to)(float *total, int64_t j, int64_t dim, int is_whole, group x) {
    group y = LEVEL(load_group)(total, j, dim, STORAGE_F32, is_whole);
    EACH_VECTOR(k) y.of[k] += x.of[k];
    LEVEL(store_group)(total, j, dim, STORAGE_F32, is_whole, y);
}

INLINE void LEVEL(sum_group)(const activation *a, const char *row, const float *moments, const char *gradient,
                             const vector_u32 *draws, int64_t j, LEVEL(row_sums) *sums, char *out, int steps,
                             int storage, int is_whole) {
    const int64_t dim = a->dim;
    LEVEL(expect_stores)(out, j, storage);
    const group weight = LEVEL(load_group)(a->weight, j, dim, STORAGE_F32, is_whole);
    const group x = LEVEL(normalize)(LEVEL(load_new)(row, j, dim, storage, is_whole), moments);
    const group u = LEVEL(scale_and_shift)(x, weight, a->bias, j, dim, is_whole);
    group d = LEVEL(pass)(LEVEL(load_new)(gradient, j, dim, storage, is_whole), u, draws, a, steps), product;
    EACH_VECTOR(k) product.of[k] = d.of[k] * x.of[k];
    LEVEL(add_to)(sums->weight_sum, j, dim, is_whole, product);
    LEVEL(add_to)(sums->bias_sum, j, dim, is_whole, d);
    EACH_VECTOR(k) {
        d.of[k] *= weight.of[k];
        sums->sum.of[k] += d.of[k];
        sums->product.of[k] += d.of[k] * x.of[k];
    }
    LEVEL(store_group)(sums->scaled, j, dim, STORAGE_F32, is_whole, d);
}

/* The gradient of x = rstd * (d * weight - mean(d * weight) - x^ * mean(d * weight * x^)). */
INLINE void LEVEL(center_group)(const activation *a, const char *row, const float *moments, const float *scaled,
                                float mean_sum, float mean_product, int64_t j, char *out, int storage, int is_whole) {
    const group x = LEVEL(normalize)(LEVEL(load_group)(row, j, a->dim, storage, is_whole), moments);
    group d = LEVEL(load_group)(scaled, j, a->dim, STORAGE_F32, is_whole);
    EACH_VECTOR(k) d.of[k] = (d.of[k] - mean_sum - x.of[k] * mean_product) * moments[1];
    LEVEL(store_group)(out, j, a->dim, storage, is_whole, d);
}

INLINE void LEVEL(pass_group)(const activation *a, const char *row, const char *gradient, const vector_u32 *draws,
                              int64_t j, char *out, int storage, int steps, int is_whole) {
    const group u = LEVEL(load_new)(row, j, a->dim, storage, is_whole);
    const group d = LEVEL(load_new)(gradient, j, a->dim, storage, is_whole);
    LEVEL(store_group)(out, j, a->dim, storage, is_whole, LEVEL(pass)(d, u, draws, a, steps));
}

INLINE void LEVEL(backward_row)(const activation *a, const void *gradient, int64_t i, float *sums, void *rows_gradient,
                                int storage, int steps) {
    const int64_t dim = a->dim, offset = i * dim * (storage == STORAGE_F32 ? 4 : 2);
    const char *row = (const char *)a->rows + offset, *out_gradient = (const char *)gradient + offset;
    char *row_gradient = (char *)rows_gradient + offset;
    const float moments[2] = {steps & NORMALIZE ? a->moments[2 * i] : 0.0f,
                              steps & NORMALIZE ? a->moments[2 * i + 1] : 1.0f};
    LEVEL(row_sums) s = {.weight_sum = sums, .bias_sum = sums + dim, .scaled = sums + 2 * dim};
    vector_u32 draws[DRAWN_COLUMNS / LANES];
    for (int64_t start = 0; start < dim; start += DRAWN_COLUMNS) {
        const int64_t stop = start + DRAWN_COLUMNS < dim ? start + DRAWN_COLUMNS : dim;
        if (steps & DROP) LEVEL(draw_columns)(a, i, start, draws);
        if (steps & NORMALIZE)
            EACH_GROUP(start, stop, LEVEL(sum_group)(a, row, moments, out_gradient, draws + (j - start) / LANES, j, &s,
                                                     row_gradient, steps, storage, is_whole));
        else
            EACH_GROUP(start, stop, LEVEL(pass_group)(a, row, out_gradient, draws + (j - start) / LANES, j,
                                                      row_gradient, storage, steps, is_whole));
    }
    if (!(steps & NORMALIZE)) return;
    const float mean_sum = LEVEL(sum_sixteen)(s.sum.of) / (float)dim;
    const float mean_product = LEVEL(sum_sixteen)(s.product.of) / (float)dim;
    EACH_GROUP(0, dim, LEVEL(center_group)(a, row, moments, s.scaled, mean_sum, mean_product, j, row_gradient, storage,
                                           is_whole));
}

/* One function per storage and steps, since a single one for all would take longer to compile. */
#define FORWARD_OF(name, storage, steps) \
    static __attribute__((noinline)) void LEVEL(name)(const activation *a, int64_t first, int64_t stop, void *out) { \
        LEVEL(activate_all)(a, first, stop, out, storage, steps); \
    }
#define BACKWARD_OF(name, storage, steps) \
    static __attribute__((noinline)) void LEVEL(name)(const activation *a, int64_t first, int64_t stop, \
                                                      const void *gradient, float *sums, void *rows_gradient) { \
        for (int64_t i = first; i < stop; i++) \
            LEVEL(backward_row)(a, gradient, i, sums, rows_gradient, storage, steps); \
    }
#define EACH_STORAGE(FUNCTION, name, steps) \
    FUNCTION(name##_f32, STORAGE_F32, steps) \
    FUNCTION(name##_bf16, STORAGE_BF16, steps) \
    FUNCTION(name##_f16, STORAGE_F16, steps)
EACH_STORAGE(FORWARD_OF, drop, DROP)
EACH_STORAGE(FORWARD_OF, rectify, RECTIFY)
EACH_STORAGE(FORWARD_OF, rectify_drop, RECTIFY | DROP)
EACH_STORAGE(FORWARD_OF, normalize_rectify, NORMALIZE | RECTIFY)
EACH_STORAGE(FORWARD_OF, normalize_rectify_drop, NORMALIZE | RECTIFY | DROP)
EACH_STORAGE(BACKWARD_OF, rectify_backward, RECTIFY)
EACH_STORAGE(BACKWARD_OF, rectify_drop_backward, RECTIFY | DROP)
EACH_STORAGE(BACKWARD_OF, normalize_rectify_backward, NORMALIZE | RECTIFY)
EACH_STORAGE(BACKWARD_OF, normalize_rectify_drop_backward, NORMALIZE | RECTIFY | DROP)
#undef FORWARD_OF
#undef BACKWARD_OF

#define CASE_OF(name, storage, steps) \
    case NUM_STORAGES * (steps) + storage: LEVEL(name)(a, first, stop, ARGUMENTS); break;
static void LEVEL(activate_range)(const activation *a, int64_t first, int64_t stop, void *out) {
#define ARGUMENTS out
    switch (NUM_STORAGES * a->steps + a->storage) {
        EACH_STORAGE(CASE_OF, drop, DROP)
        EACH_STORAGE(CASE_OF, rectify, RECTIFY)
        EACH_STORAGE(CASE_OF, rectify_drop, RECTIFY | DROP)
        EACH_STORAGE(CASE_OF, normalize_rectify, NORMALIZE | RECTIFY)
        EACH_STORAGE(CASE_OF, normalize_rectify_drop, NORMALIZE | RECTIFY | DROP)
    }
#undef ARGUMENTS
}

static void LEVEL(backward_range)(const activation *a, const void *gradient, int64_t first, int64_t stop, float *sums,
                                  void *rows_gradient) {
#define ARGUMENTS gradient, sums, rows_gradient
    if (a->steps & NORMALIZE) memset(sums, 0, (size_t)a->dim * 2 * sizeof(float));
    switch (NUM_STORAGES * a->steps + a->storage) {
        EACH_STORAGE(CASE_OF, rectify_backward, RECTIFY)
        EACH_STORAGE(CASE_OF, rectify_drop_backward, RECTIFY | DROP)
        EACH_STORAGE(CASE_OF, normalize_rectify_backward, NORMALIZE | RECTIFY)
        EACH_STORAGE(CASE_OF, normalize_rectify_drop_backward, NORMALIZE | RECTIFY | DROP)
    }
#undef ARGUMENTS
}
#undef CASE_OF
#undef EACH_STORAGE
