/* Maximum over the entries of a row: out[v][j] = largest h[u][j] over the entries u of row v, argmax[v][j] the first
 * u that has it; 0 and -1 without entries. NaN is larger than every number, the first NaN is taken. Backward, by the
 * transposed matrix: out[u][j] = sum of gradient[v][j] over the entries v of row u for which argmax[v][j] is u; equal
 * entries lie next to each other, and count once.
 *
 * Threads: segments.cuh, two columns per lane. Determinism: the first of equals is the same in any grouping that keeps
 * the order of entries; sums are float32 in the order of segments.cuh, stored once. */
#include "aggregation.cuh"

struct maxima {
    float2 best;
    int2 where; /* -1: none yet */
};

template <class T> struct candidate {
    typename pair_of<T>::type values;
    int row;
};

DEVICE void take_larger(float &best, int &where, float x, int row) {
    if (row >= 0 && (where < 0 || (best == best && !(x <= best)))) {
        best = x;
        where = row;
    }
}

template <class T> struct row_maximum {
    typedef maxima sum;
    typedef maxima part;
    typedef candidate<T> loaded;
    static constexpr int COLUMNS = 2, WORDS = 4;

    const int32_t *indices;
    const T *h;
    int64_t dim;
    int is_aligned;
    float *staged_best;
    int32_t *staged_where;
    T *out;
    int32_t *argmax;

    DEVICE void prepare(int i, int64_t, int64_t entry) const {
        shared_columns()[i] = column_of(indices, NO_ENTRY, entry);
    }
    DEVICE loaded load(int i, const lane_columns &columns) const {
        const int u = shared_columns()[i];
        if (u == NO_ENTRY) return {no_pair<T>(), u};
        return {load_pair(h + u * dim, columns, is_aligned), u};
    }
    DEVICE sum begin(int64_t) const { return none(); }
    DEVICE void add(sum &s, int, const loaded &x) const {
        const float2 values = widen(x.values);
        take_larger(s.best.x, s.where.x, values.x, x.row);
        take_larger(s.best.y, s.where.y, values.y, x.row);
    }
    DEVICE part close(sum &s) const { return s; }

    static DEVICE part none() { return {make_float2(0.0f, 0.0f), make_int2(-1, -1)}; }
    static DEVICE void merge(part &into, const part &later) {
        take_larger(into.best.x, into.where.x, later.best.x, later.where.x);
        take_larger(into.best.y, into.where.y, later.best.y, later.where.y);
    }
    static DEVICE uint32_t word(const part &x, int w) {
        return w == 0 ? __float_as_uint(x.best.x) : w == 1 ? __float_as_uint(x.best.y)
             : static_cast<uint32_t>(w == 2 ? x.where.x : x.where.y);
    }
    static DEVICE part of_words(const uint32_t *words) {
        return {make_float2(__uint_as_float(words[0]), __uint_as_float(words[1])),
                make_int2(static_cast<int>(words[2]), static_cast<int>(words[3]))};
    }
    static DEVICE void store_where(int32_t *row, const lane_columns &columns, int2 where) {
        row[columns.first] = where.x;
        if (columns.count == 2) row[columns.first + 1] = where.y;
    }
    DEVICE void store(int64_t v, const lane_columns &columns, const part &x) const {
        store_pair(out + v * dim, columns, is_aligned, x.best);
        store_where(argmax + v * dim, columns, x.where);
    }
    DEVICE void stage(int64_t slot, const lane_columns &columns, const part &x) const {
        store_pair(staged_best + slot * dim, columns, is_aligned, x.best);
        store_where(staged_where + slot * dim, columns, x.where);
    }
    DEVICE part staged(int64_t slot, const lane_columns &columns) const {
        const int32_t *where = staged_where + slot * dim + columns.first;
        return {load_pair(staged_best + slot * dim, columns, is_aligned),
                make_int2(where[0], columns.count == 2 ? where[1] : -1)};
    }
};

/* A gradient's columns where its row's maximum is the row that gathers, elsewhere zero. */
template <class T> struct chosen_source {
    struct loaded {
        typename pair_of<T>::type gradients;
        int2 where;
    };
    const int32_t *indices;
    const int64_t *begin;
    const T *gradient;
    const int32_t *argmax;
    int64_t dim;
    int is_aligned;

    DEVICE void prepare(int i, int64_t u, int64_t entry) const {
        const bool is_counted = entry != NO_ENTRY && (entry == begin[u] || indices[entry] != indices[entry - 1]);
        shared_columns()[i] = column_of(indices, NO_ENTRY, is_counted ? entry : NO_ENTRY);
        shared_places()[i] = u;
    }
    DEVICE loaded load(int i, const lane_columns &columns) const {
        const int v = shared_columns()[i];
        if (v == NO_ENTRY) return {no_pair<T>(), make_int2(-1, -1)};
        const int32_t *where = argmax + v * dim + columns.first;
        return {load_pair(gradient + v * dim, columns, is_aligned),
                make_int2(where[0], columns.count == 2 ? where[1] : -1)};
    }
    DEVICE float2 weight(int, const loaded &) const { return make_float2(1.0f, 1.0f); }
    DEVICE float2 value(int i, const loaded &x, int) const {
        const float2 gradients = widen(x.gradients);
        const int64_t u = shared_places()[i];
        return make_float2(x.where.x == u ? gradients.x : 0.0f, x.where.y == u ? gradients.y : 0.0f);
    }
};

#define MAXIMUM(T, suffix) \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS, 4) maximum_##suffix( \
        const int64_t *offset, const int32_t *block_row, int64_t first_item, int64_t last_item, int items_a_block, \
        const int64_t *begin, const int64_t *end, const int32_t *indices, int64_t num_self, const T *h, int64_t dim, \
        int is_aligned, float *staged_best, int32_t *staged_where, T *out, int32_t *argmax) { \
        const segments rows = {offset, block_row, first_item, last_item, items_a_block, begin, end, num_self}; \
        const row_maximum<T> fold = {indices, h, dim, is_aligned, staged_best, staged_where, out, argmax}; \
        fold_segments(fold, rows, dim, dim); \
    }
FOR_EACH_STORAGE(MAXIMUM)

#define MAXIMUM_SPILLED(T, suffix) \
    extern "C" __global__ void maximum_spilled_##suffix( \
        int num_spilled, const int32_t *row, const int32_t *first, const int32_t *last, int64_t dim, int is_aligned, \
        float *staged_best, int32_t *staged_where, T *out, int32_t *argmax) { \
        const row_maximum<T> fold = {nullptr, nullptr, dim, is_aligned, staged_best, staged_where, out, argmax}; \
        fold_spilled(fold, dim, num_spilled, row, first, last); \
    }
FOR_EACH_STORAGE(MAXIMUM_SPILLED)

/* Rows that several blocks share are finished by aggregation.cu's aggregate_spilled. */
#define MAXIMUM_BACKWARD(T, suffix) \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS, 4) maximum_backward_##suffix( \
        const int64_t *offset, const int32_t *block_row, int64_t first_item, int64_t last_item, int items_a_block, \
        const int64_t *begin, const int64_t *end, const int32_t *indices, int64_t num_self, const T *gradient, \
        const int32_t *argmax, int64_t dim, int is_aligned, float *staging, T *out) { \
        const segments rows = {offset, block_row, first_item, last_item, items_a_block, begin, end, num_self}; \
        const chosen_source<T> source = {indices, begin, gradient, argmax, dim, is_aligned}; \
        const row_sum<float_arithmetic<T>, chosen_source<T>> fold = {source, nullptr, dim, is_aligned, 0, staging, \
                                                                     out}; \
        fold_segments(fold, rows, dim, dim); \
    }
FOR_EACH_STORAGE(MAXIMUM_BACKWARD)
