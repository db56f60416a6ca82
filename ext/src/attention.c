#include "attention.h"

#define CACHE_LINE 64
#define PREFETCH_BYTES (32 << 10) /* bytes of rows that are prefetched at a time */
#define MIN_AHEAD 8
#define MAX_AHEAD 64

static inline int64_t row_bytes(const head_rows *h) { return h->num_heads * h->head_dim * storage_bytes(h->storage); }

/* A row is summed in pieces of this many entries and columns, which stay in the cache from one head to the next. */
#define PIECE_ENTRIES 16
#define PIECE_COLUMNS 256
#define HEADS_AT_ONCE 4

static inline char *row_at(const head_rows *h, int64_t u) { return (char *)h->rows + u * row_bytes(h); }

/* Row v of head k. */
static inline char *row_of_head(const head_rows *h, int64_t k, int64_t v) {
    return (char *)h->rows + (k * h->num_rows + v) * h->head_dim * storage_bytes(h->storage);
}

#define BODY "attention_body.h"
#include "levels.h"

#define FOR_TASKS(t, num_tasks) \
    _Pragma("omp parallel for schedule(dynamic, 1)") for (int64_t t = 0; t < num_tasks; t++)

typedef void (*score_function)(const head_rows *, int64_t, int64_t, int64_t, const float *, float *);
static const score_function SCORE[] = ALL_LEVELS(score_range);

static inline int64_t num_head_tasks(const head_rows *h) { return (h->num_rows + HEAD_TASK_ROWS - 1) / HEAD_TASK_ROWS; }

static inline int64_t task_end(const head_rows *h, int64_t t) {
    const int64_t end = (t + 1) * HEAD_TASK_ROWS;
    return end < h->num_rows ? end : h->num_rows;
}

void head_scores(head_rows h, int64_t num_vectors, const float *vectors, float *score) {
    const score_function run = SCORE[simd_level()];
    FOR_TASKS(t, num_head_tasks(&h)) run(&h, t * HEAD_TASK_ROWS, task_end(&h, t), num_vectors, vectors, score);
}

typedef void (*score_backward_function)(const head_rows *, const head_rows *, int64_t, int64_t, int64_t, const float *,
                                        const float *, float *);
static const score_backward_function SCORE_BACKWARD[] = ALL_LEVELS(score_backward_range);

void head_scores_backward(head_rows z, head_rows gradient, int64_t num_vectors, const float *vectors,
                          const float *score_gradient, float *partial) {
    const score_backward_function run = SCORE_BACKWARD[simd_level()];
    const int64_t size = num_vectors * z.num_heads * z.head_dim;
    FOR_TASKS(t, num_head_tasks(&z))
        run(&z, &gradient, t * HEAD_TASK_ROWS, task_end(&z, t), num_vectors, vectors, score_gradient,
            partial + t * size);
}

typedef void (*softmax_function)(const entry_rows *, int64_t, const float *, const float *, float, float *);
static const softmax_function SOFTMAX[] = ALL_LEVELS(softmax_task);

void edge_softmax(entry_rows a, const float *target, const float *source, float slope, float *alpha) {
    const softmax_function run = SOFTMAX[simd_level()];
    FOR_TASKS(t, a.num_tasks) run(&a, t, target, source, slope, alpha);
}

typedef void (*softmax_backward_function)(const entry_rows *, int64_t, const float *, const float *, float,
                                          const float *, float *, float *);
static const softmax_backward_function SOFTMAX_BACKWARD[] = ALL_LEVELS(softmax_backward_task);

void edge_softmax_backward(entry_rows a, const float *target, const float *source, float slope, const float *alpha,
                           float *gradient, float *target_gradient) {
    const softmax_backward_function run = SOFTMAX_BACKWARD[simd_level()];
    FOR_TASKS(t, a.num_tasks) run(&a, t, target, source, slope, alpha, gradient, target_gradient);
}

typedef void (*sum_function)(const entry_rows *, int64_t, const int64_t *, const float *, float *);
static const sum_function SUM[] = ALL_LEVELS(sum_entries_task);

void sum_entries(entry_rows a, const int64_t *entry_index, const float *value, float *out) {
    const sum_function run = SUM[simd_level()];
    FOR_TASKS(t, a.num_tasks) run(&a, t, entry_index, value, out);
}

typedef void (*product_function)(const entry_rows *, int64_t, const head_rows *, const head_rows *, float *);
static const product_function PRODUCT[] = ALL_LEVELS(product_task);

void sampled_products(entry_rows a, head_rows left, head_rows right, float *out) {
    const product_function run = PRODUCT[simd_level()];
    FOR_TASKS(t, a.num_tasks) run(&a, t, &left, &right, out);
}

typedef void (*sums_by_head_function)(const entry_rows *, int64_t, const float *, const head_rows *, const head_rows *);
static const sums_by_head_function SUMS_BY_HEAD[] = ALL_LEVELS(sums_by_head_task);

void sums_by_head(entry_rows a, const float *weight, head_rows shared, head_rows by_head) {
    const sums_by_head_function run = SUMS_BY_HEAD[simd_level()];
    FOR_TASKS(t, a.num_tasks) run(&a, t, weight, &shared, &by_head);
}

static const product_function PRODUCTS_BY_HEAD[] = ALL_LEVELS(products_by_head_task);

void products_by_head(entry_rows a, head_rows by_head, head_rows shared, float *out) {
    const product_function run = PRODUCTS_BY_HEAD[simd_level()];
    FOR_TASKS(t, a.num_tasks) run(&a, t, &by_head, &shared, out);
}

static const sums_by_head_function SUM_OVER_HEADS[] = ALL_LEVELS(sum_over_heads_task);

void sum_over_heads(entry_rows a, const float *weight, head_rows by_head, head_rows shared) {
    const sums_by_head_function run = SUM_OVER_HEADS[simd_level()];
    FOR_TASKS(t, a.num_tasks) run(&a, t, weight, &by_head, &shared);
}

void take_entries(int64_t num_entries, int64_t num_heads, const int64_t *entry_index, const float *value, float *out) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < num_entries; i++) {
        if (i + MAX_AHEAD < num_entries) __builtin_prefetch(value + entry_index[i + MAX_AHEAD] * num_heads);
        for (int64_t k = 0; k < num_heads; k++) out[i * num_heads + k] = value[entry_index[i] * num_heads + k];
    }
}
