/* Attention over the entries of a sparse matrix, but for the softmax (softmax.cu) and the weighted sum
 * (aggregation.cu).
 *
 * sampled_products (SDDMM): out[e, head] = <left[v], right[u]> over the head's columns, for the entry e = (v, u).
 * head_scores: score[k, u, head] = <row u, vector k> over the head's columns; its backward adds the sum over k of
 * score_gradient[k, u, head] * vector k to the gradient of row u, and sums score_gradient[k, u, head] * row u over
 * the rows to that of vector k. sum_entries: out[v] = sum of value[entry_index[e]] over the entries e of row v.
 * take_entries: out[i] = value[entry_index[i]].
 *
 * Threads: one sub-warp per product, as narrow as the loads allow (dots.cuh); products of sampled_products are cut into
 * blocks of equally many entries (segments.cuh), as are the sums of sum_entries. Gradients of vectors: a block takes
 * TASK_ROWS rows of 32 columns, a warp every eighth row. All others: one thread per element or pair of elements.
 *
 * Determinism: every sum has one order, of columns, entries or rows; there are no atomics. Sums are float32, but sums
 * over blocks of rows float64. A value of an entry is rounded to the storage of the rows, once, when it is stored
 * (HalfGNN, Section 4.4); scores and sums of rows are float32. */
#include "aggregation.cuh"
#include "dots.cuh"

constexpr int PRODUCTS_AHEAD = 2; /* products whose columns a lane loads before it shares the first */
constexpr int PRODUCT_LANES = 8;   /* at most, per product of an entry: more lanes would shuffle more for less work */
constexpr int WARPS = MAX_THREADS / WARP_SIZE;

struct entry_columns {
    const int32_t *indices;

    DEVICE void prepare(int i, int64_t, int64_t entry) const {
        shared_columns()[i] = column_of(indices, NO_ENTRY, entry);
        shared_places()[i] = entry;
    }
};

template <class T>
DEVICE void multiply_sampled(const segments &a, const int32_t *indices, const T *left, const T *right, int num_heads,
                             int64_t head_dim, int vector, T *out) {
    const item_block block = open_block(a);
    prepare_items(a, block, entry_columns{indices});
    const int lanes = min(power_of_two_from((head_dim + vector - 1) / vector), PRODUCT_LANES);
    const int lane = threadIdx.x % lanes, num_groups = blockDim.x / lanes, num_products = block.num_items * num_heads;
    for (int first = 0; first < num_products; first += PRODUCTS_AHEAD * num_groups) {
        float product[PRODUCTS_AHEAD];
        int64_t place[PRODUCTS_AHEAD];
        for (int k = 0; k < PRODUCTS_AHEAD; k++) {
            const int p = first + k * num_groups + threadIdx.x / lanes;
            product[k] = 0.0f;
            place[k] = -1;
            const int i = num_heads == 1 ? p : p / num_heads, head = p - i * num_heads; /* a division is costly */
            if (p >= num_products || shared_places()[i] == NO_ENTRY) continue;
            const int64_t v = block.first_row + shared_rows()[i], u = shared_columns()[i];
            place[k] = shared_places()[i] * num_heads + head;
            product[k] = partial_dot(left + (v * num_heads + head) * head_dim,
                                     right + (u * num_heads + head) * head_dim, head_dim, lane, lanes, vector);
        }
        for (int k = 0; k < PRODUCTS_AHEAD; k++) {
            const float sum = sum_of_lanes(product[k], lanes);
            if (lane == 0 && place[k] >= 0) store_f32(out, place[k], sum);
        }
    }
}

#define SAMPLED_PRODUCTS(T, suffix) \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) sampled_products_##suffix( \
        const int64_t *offset, const int32_t *block_row, int64_t first_item, int64_t last_item, int items_a_block, \
        const int64_t *begin, const int64_t *end, const int32_t *indices, int64_t num_self, const T *left, \
        const T *right, int num_heads, int64_t head_dim, int vector, T *out) { \
        multiply_sampled({offset, block_row, first_item, last_item, items_a_block, begin, end, num_self}, indices, \
                         left, right, num_heads, head_dim, vector, out); \
    }
FOR_EACH_STORAGE(SAMPLED_PRODUCTS)

template <class T>
DEVICE void score_rows(const T *rows, const float *vectors, int num_vectors, int64_t num_rows, int num_heads,
                       int64_t head_dim, int vector, float *score) {
    const int lanes = power_of_two_from((head_dim + vector - 1) / vector), lane = threadIdx.x % lanes;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * (blockDim.x / lanes) + threadIdx.x / lanes;
    const int64_t num_products = num_rows * num_heads, head = i % num_heads;
    for (int k = 0; k < num_vectors; k++) {
        float product = 0.0f;
        if (i < num_products)
            product = partial_dot(rows + i * head_dim, vectors + (k * num_heads + head) * head_dim, head_dim, lane,
                                  lanes, vector);
        product = sum_of_lanes(product, lanes);
        if (lane == 0 && i < num_products) score[k * num_products + i] = product;
    }
}

/* Adds to the gradients of rows what comes through the scores; one thread per pair of columns. */
template <class T>
DEVICE void add_score_gradients(T *gradient, const float *vectors, const float *score_gradient, int num_vectors,
                                int64_t num_rows, int num_heads, int64_t head_dim, int is_aligned) {
    const int64_t dim = num_heads * head_dim, num_pairs = (dim + 1) / 2;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= num_rows * num_pairs) return;
    const int64_t u = i / num_pairs;
    const lane_columns columns = columns_from<2>(i % num_pairs * 2, dim, head_dim);
    float2 sum = widen(load_pair(gradient + u * dim, columns, is_aligned));
    for (int k = 0; k < num_vectors; k++) {
        const float *of_row = score_gradient + (k * num_rows + u) * num_heads;
        const float2 vector = load_pair(vectors + k * dim, columns, 0);
        sum.x = fmaf(of_row[columns.head], vector.x, sum.x);
        sum.y = fmaf(of_row[columns.next_head], vector.y, sum.y);
    }
    store_pair(gradient + u * dim, columns, is_aligned, sum);
}

/* partial[t, k] is the gradient of vector k over the rows of block t; blockIdx.z is k. */
template <class T>
DEVICE void sum_vector_gradients(const T *rows, const float *score_gradient, int64_t num_rows, int num_heads,
                                 int64_t head_dim, int64_t task_rows, float *partial) {
    SHARED_MATRIX(float, of_warp, WARPS, WARP_SIZE);
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int64_t dim = num_heads * head_dim, j = static_cast<int64_t>(blockIdx.y) * WARP_SIZE + lane;
    const int64_t first = blockIdx.x * task_rows, end = first + task_rows < num_rows ? first + task_rows : num_rows;
    float sum = 0.0f;
    if (j < dim)
        for (int64_t u = first + warp; u < end; u += WARPS)
            sum = fmaf(score_gradient[(blockIdx.z * num_rows + u) * num_heads + j / head_dim],
                       load_f32(rows, u * dim + j), sum);
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || j >= dim) return;
    for (int w = 1; w < WARPS; w++) sum += of_warp[w][lane];
    partial[(static_cast<int64_t>(blockIdx.x) * gridDim.z + blockIdx.z) * dim + j] = sum;
}

#define HEAD_SCORES(T, suffix) \
    extern "C" __global__ void head_scores_##suffix( \
        const T *rows, const float *vectors, int num_vectors, int64_t num_rows, int num_heads, int64_t head_dim, \
        int vector, float *score) { \
        score_rows(rows, vectors, num_vectors, num_rows, num_heads, head_dim, vector, score); \
    } \
    extern "C" __global__ void score_gradients_##suffix( \
        T *gradient, const float *vectors, const float *score_gradient, int num_vectors, int64_t num_rows, \
        int num_heads, int64_t head_dim, int is_aligned) { \
        add_score_gradients(gradient, vectors, score_gradient, num_vectors, num_rows, num_heads, head_dim, \
                            is_aligned); \
    } \
    extern "C" __global__ void vector_gradients_##suffix( \
        const T *rows, const float *score_gradient, int64_t num_rows, int num_heads, int64_t head_dim, \
        int64_t task_rows, float *partial) { \
        sum_vector_gradients(rows, score_gradient, num_rows, num_heads, head_dim, task_rows, partial); \
    }
FOR_EACH_STORAGE(HEAD_SCORES)

extern "C" __global__ void sum_tasks(const float *partial, int64_t num_tasks, int64_t size, float *out) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= size) return;
    double sum = 0.0;
    for (int64_t t = 0; t < num_tasks; t++) sum += partial[t * size + i];
    out[i] = static_cast<float>(sum);
}

/* Values of entries, by an index. */
template <class T> struct value_source {
    typedef float2 loaded;
    const int64_t *entry_index;
    const T *values;
    int64_t num_heads;

    DEVICE void prepare(int i, int64_t, int64_t entry) const {
        shared_places()[i] = entry == NO_ENTRY ? NO_ENTRY : entry_index[entry];
    }
    DEVICE float2 load(int i, const lane_columns &columns) const {
        const int64_t place = shared_places()[i];
        if (place == NO_ENTRY) return make_float2(0.0f, 0.0f);
        return widen(load_pair(values + place * num_heads, columns, 0));
    }
    DEVICE float2 weight(int, float2) const { return make_float2(1.0f, 1.0f); }
    DEVICE float2 value(int, float2 x, int) const { return x; }
};

/* Rows that several blocks share are finished by aggregation.cu's aggregate_spilled. */
#define VALUES_OF_ENTRIES(T, suffix) \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) sum_entries_##suffix( \
        const int64_t *offset, const int32_t *block_row, int64_t first_item, int64_t last_item, int items_a_block, \
        const int64_t *begin, const int64_t *end, const int32_t *indices, int64_t num_self, \
        const int64_t *entry_index, const T *value, int64_t num_heads, float *staging, float *out) { \
        const row_sum<float_arithmetic<float>, value_source<T>> fold = {{entry_index, value, num_heads}, nullptr, \
                                                                        num_heads, 0, 0, staging, out}; \
        fold_segments(fold, {offset, block_row, first_item, last_item, items_a_block, begin, end, num_self}, \
                      num_heads, num_heads); \
    } \
    extern "C" __global__ void take_entries_##suffix(const int64_t *entry_index, int64_t num_entries, \
                                                     int64_t num_heads, const T *value, T *out) { \
        const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; \
        if (i < num_entries * num_heads) out[i] = value[entry_index[i / num_heads] * num_heads + i % num_heads]; \
    }
FOR_EACH_STORAGE(VALUES_OF_ENTRIES)
