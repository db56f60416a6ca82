/* The kernels of aggregation: the maths is in aggregation.cuh, the sums in arithmetic.cuh, threads and determinism in
 * segments.cuh. Kernels named `half` sum in half arithmetic, the others in float32. */
#include "aggregation.cuh"

/* Pointers that a kernel's kind does not read may be null. Kernels named `wide` have 16 bytes per lane: every row
 * begins on 16 bytes, and so do the columns of every head. Kernels named `ragged` do too, but their rows begin
 * anywhere. BLOCKS per multiprocessor bound the registers, such that hardly one is spilled. */
#define AGGREGATE_ROWS(name, T, ARITHMETIC, SOURCE, PAIRS, BLOCKS, IS_RAGGED) \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS, BLOCKS) name( \
        const int64_t *offset, const int32_t *block_row, int64_t first_item, int64_t last_item, int items_a_block, \
        const int64_t *begin, const int64_t *end, const int32_t *indices, int64_t num_self, const float *row_scale, \
        const float *column_scale, const T *near, const T *far, int64_t num_near, int64_t num_far, int64_t split, \
        int64_t dim, int is_aligned, const float *entry_scale, const T *stored_scale, const int64_t *entry_index, \
        int num_heads, const uint8_t *message, const uint8_t *bit_width, const int64_t *payload_offset, \
        const int64_t *parameter_offset, int is_added, float *staging, T *out) { \
        typedef ARITHMETIC<T> arithmetic; \
        const segments rows = {offset, block_row, first_item, last_item, items_a_block, begin, end, num_self}; \
        const operands<T> from = {indices, column_scale, near, far, split, dim, is_aligned, {entry_scale, stored_scale}, \
                                  entry_index, num_heads, message, bit_width, payload_offset, parameter_offset, \
                                  num_near, num_far}; \
        const row_sum<arithmetic, SOURCE<arithmetic, PAIRS>, PAIRS, IS_RAGGED> fold = { \
            {from}, row_scale, dim, is_aligned, is_added, staging, out}; \
        fold_segments(fold, rows, dim, dim / num_heads); \
    }
#define AGGREGATE(name, T, ARITHMETIC, SOURCE, PAIRS, BLOCKS) \
    AGGREGATE_ROWS(name, T, ARITHMETIC, SOURCE, PAIRS, BLOCKS, false)
#define AGGREGATE_RAGGED(name, T, ARITHMETIC, SOURCE, BLOCKS) \
    AGGREGATE_ROWS(name, T, ARITHMETIC, SOURCE, WIDE_PAIRS<T>, BLOCKS, true)
AGGREGATE(aggregate_f32, float, float_arithmetic, plain_source, 1, 4)
AGGREGATE(aggregate_wide_f32, float, float_arithmetic, plain_source, WIDE_PAIRS<float>, 4)
AGGREGATE(aggregate_bf16, __nv_bfloat16, float_arithmetic, plain_source, 1, 4)
AGGREGATE(aggregate_wide_bf16, __nv_bfloat16, float_arithmetic, plain_source, WIDE_PAIRS<__nv_bfloat16>, 4)
AGGREGATE(aggregate_f16, __half, float_arithmetic, plain_source, 1, 4)
AGGREGATE(aggregate_wide_f16, __half, float_arithmetic, plain_source, WIDE_PAIRS<__half>, 4)
AGGREGATE(aggregate_half_bf16, __nv_bfloat16, half_arithmetic, plain_source, 1, 4)
AGGREGATE(aggregate_wide_half_bf16, __nv_bfloat16, half_arithmetic, plain_source, WIDE_PAIRS<__nv_bfloat16>, 3)
AGGREGATE(aggregate_half_f16, __half, half_arithmetic, plain_source, 1, 4)
AGGREGATE(aggregate_wide_half_f16, __half, half_arithmetic, plain_source, WIDE_PAIRS<__half>, 3)
AGGREGATE(aggregate_heads_f32, float, float_arithmetic, heads_source, 1, 4)
AGGREGATE(aggregate_wide_heads_f32, float, float_arithmetic, heads_source, WIDE_PAIRS<float>, 4)
AGGREGATE(aggregate_heads_bf16, __nv_bfloat16, float_arithmetic, heads_source, 1, 4)
AGGREGATE(aggregate_wide_heads_bf16, __nv_bfloat16, float_arithmetic, heads_source, WIDE_PAIRS<__nv_bfloat16>, 4)
AGGREGATE(aggregate_heads_f16, __half, float_arithmetic, heads_source, 1, 4)
AGGREGATE(aggregate_wide_heads_f16, __half, float_arithmetic, heads_source, WIDE_PAIRS<__half>, 4)
AGGREGATE(aggregate_heads_half_bf16, __nv_bfloat16, half_arithmetic, heads_source, 1, 4)
AGGREGATE(aggregate_wide_heads_half_bf16, __nv_bfloat16, half_arithmetic, heads_source, WIDE_PAIRS<__nv_bfloat16>, 3)
AGGREGATE(aggregate_heads_half_f16, __half, half_arithmetic, heads_source, 1, 4)
AGGREGATE(aggregate_wide_heads_half_f16, __half, half_arithmetic, heads_source, WIDE_PAIRS<__half>, 3)
AGGREGATE(aggregate_packed_f32, float, float_arithmetic, packed_source, 1, 4)
AGGREGATE(aggregate_wide_packed_f32, float, float_arithmetic, packed_source, WIDE_PAIRS<float>, 3)
AGGREGATE(aggregate_packed_bf16, __nv_bfloat16, float_arithmetic, packed_source, 1, 4)
AGGREGATE(aggregate_wide_packed_bf16, __nv_bfloat16, float_arithmetic, packed_source, WIDE_PAIRS<__nv_bfloat16>, 3)
AGGREGATE(aggregate_packed_f16, __half, float_arithmetic, packed_source, 1, 4)
AGGREGATE(aggregate_wide_packed_f16, __half, float_arithmetic, packed_source, WIDE_PAIRS<__half>, 3)
AGGREGATE(aggregate_packed_half_bf16, __nv_bfloat16, half_arithmetic, packed_source, 1, 4)
AGGREGATE(aggregate_wide_packed_half_bf16, __nv_bfloat16, half_arithmetic, packed_source, WIDE_PAIRS<__nv_bfloat16>, 2)
AGGREGATE(aggregate_packed_half_f16, __half, half_arithmetic, packed_source, 1, 4)
AGGREGATE(aggregate_wide_packed_half_f16, __half, half_arithmetic, packed_source, WIDE_PAIRS<__half>, 2)
AGGREGATE_RAGGED(aggregate_ragged_f32, float, float_arithmetic, ragged_source, 3)
AGGREGATE_RAGGED(aggregate_ragged_bf16, __nv_bfloat16, float_arithmetic, ragged_source, 3)
AGGREGATE_RAGGED(aggregate_ragged_f16, __half, float_arithmetic, ragged_source, 3)
AGGREGATE_RAGGED(aggregate_ragged_half_bf16, __nv_bfloat16, half_arithmetic, ragged_source, 3)
AGGREGATE_RAGGED(aggregate_ragged_half_f16, __half, half_arithmetic, ragged_source, 3)
AGGREGATE_RAGGED(aggregate_ragged_packed_f32, float, float_arithmetic, ragged_packed_source, 2)
AGGREGATE_RAGGED(aggregate_ragged_packed_bf16, __nv_bfloat16, float_arithmetic, ragged_packed_source, 2)
AGGREGATE_RAGGED(aggregate_ragged_packed_f16, __half, float_arithmetic, ragged_packed_source, 2)
AGGREGATE_RAGGED(aggregate_ragged_packed_half_bf16, __nv_bfloat16, half_arithmetic, ragged_packed_source, 2)
AGGREGATE_RAGGED(aggregate_ragged_packed_half_f16, __half, half_arithmetic, ragged_packed_source, 2)

/* Rows that several blocks share. Half arithmetic has scaled their parts already: row_scale is null. */
#define AGGREGATE_SPILLED(T, suffix) \
    extern "C" __global__ void aggregate_spilled_##suffix( \
        int num_spilled, const int32_t *row, const int32_t *first, const int32_t *last, int64_t dim, \
        const float *row_scale, int is_aligned, int is_added, float *staging, T *out) { \
        typedef float_arithmetic<T> arithmetic; \
        const row_sum<arithmetic, plain_source<arithmetic, 1>> fold = {{}, row_scale, dim, is_aligned, is_added, \
                                                                       staging, out}; \
        fold_spilled(fold, dim, num_spilled, row, first, last); \
    }
FOR_EACH_STORAGE(AGGREGATE_SPILLED)
