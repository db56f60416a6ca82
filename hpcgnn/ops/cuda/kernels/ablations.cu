/* SpMM without one of the choices of aggregation.cu, for benchmarks alone: HalfGNN, Fig. 9 and 10.
 *
 * Maths: out[v] = row_scale[v] * sum over the entries e of row v of row indices[e] of `near`; columns are whole pairs.
 * Threads: spmm_atomic has the blocks and lanes of segments.cuh, with 16 bytes per lane, but adds each part of a row to
 * the row in `out`, zero before, by atomics in the storage's own precision. spmm_by_row has one warp per row and 64
 * columns, two per lane, as vertex-parallel systems do.
 * Determinism: spmm_atomic has none, and is why nothing else uses it. */
#include "aggregation.cuh"

template <class A, int PAIRS>
DEVICE void add_part(const typename A::sum (&sums)[PAIRS], float scale, const lane_columns &columns,
                     typename A::storage *row) {
    typedef typename A::storage T;
    for (int p = 0; p < PAIRS; p++) {
        const float2 total = sums[p].total;
        add_in_any_order(reinterpret_cast<typename pair_of<T>::type *>(row + columns.first) + p,
                         narrow<T>(make_float2(scale * total.x, scale * total.y)));
    }
}

template <class A, int PAIRS>
DEVICE void multiply_atomically(const segments &a, const operands<typename A::storage> &from, const float *row_scale,
                                int64_t dim, typename A::storage *out) {
    const plain_source<A, PAIRS> source = {from};
    const item_block block = open_block(a);
    prepare_items(a, block, source);
    const item_chunk chunk = open_chunk<2 * PAIRS>(a, block, dim, dim);
    if (chunk.first >= block.num_items || chunk.columns.count == 0) return;
    const item_array<int32_t> row_of = shared_rows();
    int row = row_of[chunk.first];
    typename A::sum sums[PAIRS] = {};
    for (int i = chunk.first; i < chunk.stop; i++) {
        const int next = row_of[i];
        if (next != row) {
            const int64_t v = block.first_row + row;
            add_part<A>(sums, A::scale(row_scale, v), chunk.columns, out + v * dim);
            for (int p = 0; p < PAIRS; p++) sums[p] = A::begin(row_scale, v);
            row = next;
        }
        const auto loaded = source.load(i, chunk.columns);
        for (int p = 0; p < PAIRS; p++) A::add(sums[p], source.weight(i, loaded), source.value(i, loaded, p));
    }
    const int64_t v = block.first_row + row;
    add_part<A>(sums, A::scale(row_scale, v), chunk.columns, out + v * dim);
}

template <class T>
DEVICE void multiply_by_row(const int64_t *begin, const int64_t *end, const int32_t *indices, int64_t num_rows,
                            const float *row_scale, const T *near, int64_t dim, T *out) {
    const int64_t v = static_cast<int64_t>(blockIdx.x) * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * 2 * WARP_SIZE + threadIdx.x % WARP_SIZE * 2;
    if (v >= num_rows || first >= dim) return;
    const lane_columns columns = columns_from<2>(first, dim, dim);
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 4
    for (int64_t e = begin[v]; e < end[v]; e++) {
        const float2 x = widen(load_pair(near + indices[e] * dim, columns, 1));
        sum.x += x.x;
        sum.y += x.y;
    }
    const float scale = row_scale ? row_scale[v] : 1.0f;
    store_pair(out + v * dim, columns, 1, make_float2(scale * sum.x, scale * sum.y));
}

#define ABLATIONS(T, suffix) \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS, 4) spmm_atomic_##suffix( \
        const int64_t *offset, const int32_t *block_row, int64_t first_item, int64_t last_item, int items_a_block, \
        const int64_t *begin, const int64_t *end, const int32_t *indices, int64_t num_self, const float *row_scale, \
        const T *near, int64_t num_near, int64_t dim, T *out) { \
        typedef float_arithmetic<T> arithmetic; \
        const operands<T> from = {indices, nullptr, near, nullptr, num_near, dim, 1, {}, nullptr, 1, \
                                  nullptr, nullptr, nullptr, nullptr, num_near, 0}; \
        multiply_atomically<arithmetic, WIDE_PAIRS<T>>( \
            {offset, block_row, first_item, last_item, items_a_block, begin, end, num_self}, from, row_scale, dim, out); \
    } \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) spmm_by_row_##suffix( \
        const int64_t *begin, const int64_t *end, const int32_t *indices, int64_t num_rows, const float *row_scale, \
        const T *near, int64_t dim, T *out) { \
        multiply_by_row(begin, end, indices, num_rows, row_scale, near, dim, out); \
    }
ABLATIONS(float, f32)
ABLATIONS(__half, f16)
