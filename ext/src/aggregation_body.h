/* Kernel body, compiled once per SIMD level by aggregation.c. */
#include "vector.h"
#include "packed_rows_body.h"

/* x86-64 without AVX2 is rare, so it has blocks of few sizes, and treats each as one that ends within a vector. */
#undef HAS_WHOLE
#define HAS_WHOLE (!HPCGNN_X86 || LEVEL_LANES > 4)

static int64_t LEVEL(last_whole)(int64_t num_rows, int64_t dim, int64_t first, int64_t num_read) {
    const int64_t elements = num_rows * dim - first - num_read;
    return elements < 0 ? -1 : elements / dim;
}

static block_tables LEVEL(tables_of)(const dense_rows *h, column_block block) {
    const int64_t size = storage_bytes(h->storage), row_bytes = h->dim * size;
    const int64_t num_read = (block.num_columns + BLOCK_MARGIN - 1) / BLOCK_MARGIN * BLOCK_MARGIN;
    return (block_tables){(uintptr_t)h->near + (uintptr_t)(block.first * size),
                          (uintptr_t)h->far + (uintptr_t)((block.first - h->split * h->dim) * size), row_bytes,
                          LEVEL(last_whole)(h->num_near, h->dim, block.first, num_read),
                          LEVEL(last_whole)(h->num_far, h->dim, block.first, num_read) + h->split};
}

INLINE uintptr_t LEVEL(address_of)(const block_tables *tables, int64_t split, int64_t u) {
    return (u < split ? tables->near : tables->far) + (uintptr_t)(u * tables->row_bytes);
}

INLINE const char *LEVEL(columns_of)(const block_tables *tables, int64_t split, int64_t u) {
    return (const char *)LEVEL(address_of)(tables, split, u);
}

/* Prefetch a row; its table need not exist. */
INLINE void LEVEL(prefetch)(uintptr_t columns, int num_bytes) {
#pragma GCC unroll 8
    for (int b = 0; b < num_bytes; b += CACHE_LINE) __builtin_prefetch((const void *)(columns + (uintptr_t)b));
    /* rows need not begin on a line */
    __builtin_prefetch((const void *)(columns + (uintptr_t)num_bytes - 1));
}

INLINE const uint8_t *LEVEL(packed_columns)(const packed_rows *packed, int64_t i, int64_t first) {
    return packed->message + packed->payload_offset[i] + first / 8 * packed->bit_width[i];
}

/* Out of line: code that most products never run. */
static __attribute__((noinline)) void LEVEL(decode_block)(const packed_rows *packed, int64_t i, column_block block,
                                                          float *out) {
    uint16_t parameters[2];
    memcpy(parameters, packed->message + packed->parameter_offset[i], sizeof parameters);
    LEVEL(decode_columns)(packed->message + packed->payload_offset[i], packed->bit_width[i],
                          bf16_value(parameters[0]), bf16_value(parameters[1]), block.first, block.num_columns, out);
}

/* bfloat16 in pairs: the even columns of 2 * LANES in one vector, the odd ones in the next. */
INLINE void LEVEL(split_pairs)(const char *columns, vector_f32 *even, vector_f32 *odd) {
    vector_u32 pairs;
    memcpy(&pairs, columns, sizeof pairs);
    *even = (vector_f32)(pairs << 16);
    *odd = (vector_f32)(pairs & 0xffff0000u);
}

INLINE void LEVEL(add_row)(vector_f32 *sum, int num_vectors, const char *columns, int storage, int is_paired,
                           int is_weighted, float weight) {
#pragma GCC unroll 8
    for (int i = 0; i < num_vectors; i += 1 + is_paired) {
        vector_f32 x[2];
        if (is_paired)
            LEVEL(split_pairs)(columns + i * LANES * 2, &x[0], &x[1]);
        else
            x[0] = LEVEL(load)(columns, i * LANES, storage);
#pragma GCC unroll 2
        for (int k = 0; k <= is_paired; k++) sum[i + k] += is_weighted ? weight * x[k] : x[k];
    }
}

/* A paired sum back to the order of the columns. */
INLINE void LEVEL(unpair)(vector_f32 *even, vector_f32 *odd) {
    float columns[2 * LANES];
    for (int i = 0; i < LANES; i++) {
        columns[2 * i] = (*even)[i];
        columns[2 * i + 1] = (*odd)[i];
    }
    memcpy(even, columns, sizeof *even);
    memcpy(odd, columns + LANES, sizeof *odd);
}

INLINE void LEVEL(store_sum)(vector_f32 *sum, int num_vectors, float row_scale, column_block block, int storage,
                             int is_paired, int accumulate, char *out_row) {
    if (is_paired) {
#pragma GCC unroll 4
        for (int i = 0; i < num_vectors; i += 2) LEVEL(unpair)(&sum[i], &sum[i + 1]);
    }
    for (int i = 0; i < num_vectors && i * LANES < block.num_columns; i++) {
        const int64_t j = block.first + i * LANES, stop = block.first + block.num_columns;
        vector_f32 value = row_scale * sum[i];
        if (accumulate) value += LEVEL(load_columns)(out_row, j, stop, storage);
        LEVEL(store_columns)(out_row, j, stop, storage, value);
    }
}

/* Columns of row u that may be read in whole vectors: in place, or from a copy at the end of a table. */
INLINE const char *LEVEL(readable)(const dense_rows *h, const block_tables *tables, int64_t u, column_block block,
                                   int storage, char *copy) {
    const char *columns = LEVEL(columns_of)(tables, h->split, u);
    if (__builtin_expect(u <= (u < h->split ? tables->whole_near : tables->whole_far), 1)) return columns;
    memcpy(copy, columns, (size_t)(block.num_columns * (storage == STORAGE_F32 ? 4 : 2)));
    return copy;
}

/* One row, one block of at most num_vectors * LANES columns. The last four arguments are constants. */
INLINE void LEVEL(sum_block)(const sparse_rows *a, const dense_rows *h, const block_tables *tables, int64_t v,
                             column_block block, int accumulate, char *out_row, int num_vectors, int storage,
                             int weighting, int kind) {
    const int is_paired = storage == STORAGE_BF16 && num_vectors % 2 == 0 && kind != PACKED;
    const int is_weighted = weighting != UNWEIGHTED, num_bytes = num_vectors * LANES * (storage == STORAGE_F32 ? 4 : 2);
    const int64_t end = a->end[v], ahead = tables->row_bytes > 512 ? PREFETCH_ENTRIES / 2 : PREFETCH_ENTRIES;
    const int64_t last = a->num_entries - 1;
    char copy[MAX_VECTORS * LANES * 4] = {0};
    vector_f32 sum[MAX_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < num_vectors; i++) sum[i] = (vector_f32){0};
    if (v < a->num_self)
        LEVEL(add_row)(sum, num_vectors, LEVEL(readable)(h, tables, v, block, storage, copy), storage, is_paired,
                       is_weighted, is_weighted && a->column_scale ? a->column_scale[v] : 1.0f);
    for (int64_t e = a->begin[v]; e < end; e++) {
        const int64_t u = a->indices[e], next = a->indices[e + ahead < last ? e + ahead : last];
        float weight = 1.0f;
        if (weighting == BY_COLUMN) weight = a->column_scale[u];
        if (weighting == BY_ENTRY) {
            weight = a->entry_scale[(a->entry_index ? a->entry_index[e] : e) * a->num_heads + block.head];
            if (a->column_scale) weight *= a->column_scale[u];
        }
        if (kind == PACKED && next >= h->split)
            __builtin_prefetch(LEVEL(packed_columns)(&h->packed, next - h->split, block.first));
        else
            LEVEL(prefetch)(LEVEL(address_of)(tables, h->split, next), num_bytes);
        if (kind == PACKED && u >= h->split) {
            LEVEL(decode_block)(&h->packed, u - h->split, block, (float *)copy);
            LEVEL(add_row)(sum, num_vectors, copy, STORAGE_F32, 0, is_weighted, weight);
        } else {
            const char *columns = kind == WHOLE ? LEVEL(columns_of)(tables, h->split, u)
                                                : LEVEL(readable)(h, tables, u, block, storage, copy);
            LEVEL(add_row)(sum, num_vectors, columns, storage, is_paired, is_weighted, weight);
        }
    }
    LEVEL(store_sum)(sum, num_vectors, a->row_scale ? a->row_scale[v] : 1.0f, block, storage, is_paired, accumulate,
                     out_row);
}

/* Sums one block of n vectors for the rows of a task. One function per case: a single one with all loops would take
 * twice as long to compile. */
#define SUM_ROWS_OF(name, n, storage, weighting, kind) \
    static __attribute__((noinline)) void LEVEL(name##_##n)(const sparse_rows *a, const dense_rows *h, int64_t t, \
                                                            column_block block, int accumulate, char *out) { \
        const block_tables tables = LEVEL(tables_of)(h, block); \
        for (int64_t v = a->task[t]; v < a->task[t + 1]; v++) \
            LEVEL(sum_block)(a, h, &tables, v, block, accumulate, out + v * tables.row_bytes, n, storage, weighting, \
                             kind); \
    }
#define CASE_OF(name, n, storage, weighting, kind) \
    case 8 * (3 * storage + weighting) + n - 1: LEVEL(name##_##n)(a, h, t, block, accumulate, out); break;
/* The sizes that pass_vectors chooses. */
#define EVEN_SIZES(CALL, name, storage, weighting, kind) \
    CALL(name, 2, storage, weighting, kind) \
    CALL(name, 4, storage, weighting, kind) \
    CALL(name, 8, storage, weighting, kind)
#if HAS_WHOLE
#define PAIRED_SIZES(CALL, name, storage, weighting, kind) \
    EVEN_SIZES(CALL, name, storage, weighting, kind) \
    CALL(name, 6, storage, weighting, kind)
#define SIZES(CALL, name, storage, weighting, kind) \
    PAIRED_SIZES(CALL, name, storage, weighting, kind) \
    CALL(name, 1, storage, weighting, kind) \
    CALL(name, 3, storage, weighting, kind)
#else
#define PAIRED_SIZES EVEN_SIZES
#define SIZES EVEN_SIZES
#endif
#define EACH_LOOP(CALL, name, kind) \
    SIZES(CALL, name##_f32, STORAGE_F32, UNWEIGHTED, kind) \
    SIZES(CALL, name##_f32_by_column, STORAGE_F32, BY_COLUMN, kind) \
    SIZES(CALL, name##_f32_by_entry, STORAGE_F32, BY_ENTRY, kind) \
    PAIRED_SIZES(CALL, name##_bf16, STORAGE_BF16, UNWEIGHTED, kind) \
    PAIRED_SIZES(CALL, name##_bf16_by_column, STORAGE_BF16, BY_COLUMN, kind) \
    PAIRED_SIZES(CALL, name##_bf16_by_entry, STORAGE_BF16, BY_ENTRY, kind) \
    SIZES(CALL, name##_f16, STORAGE_F16, UNWEIGHTED, kind) \
    SIZES(CALL, name##_f16_by_column, STORAGE_F16, BY_COLUMN, kind) \
    SIZES(CALL, name##_f16_by_entry, STORAGE_F16, BY_ENTRY, kind)
#define SUM_TASK(name, kind) \
    EACH_LOOP(SUM_ROWS_OF, name, kind) \
    static void LEVEL(name)(const sparse_rows *a, const dense_rows *h, int64_t t, column_block block, \
                            int num_vectors, int accumulate, char *out) { \
        const int weighting = a->entry_scale ? BY_ENTRY : a->column_scale ? BY_COLUMN : UNWEIGHTED; \
        switch (8 * (3 * h->storage + weighting) + num_vectors - 1) { EACH_LOOP(CASE_OF, name, kind) } \
    }
#if HAS_WHOLE
SUM_TASK(sum_whole, WHOLE)
#endif
SUM_TASK(sum_partial, PARTIAL)
SUM_TASK(sum_packed, PACKED)
#undef SUM_ROWS_OF
#undef CASE_OF
#undef EVEN_SIZES
#undef PAIRED_SIZES
#undef SIZES
#undef EACH_LOOP
#undef SUM_TASK

/* Vectors of the next pass over a row's entries: as many as are needed and the registers hold. bfloat16 takes pairs. */
static int LEVEL(pass_vectors)(int64_t needed, int storage) {
    if (needed >= MAX_VECTORS) return MAX_VECTORS;
    if (!HAS_WHOLE) return needed > 4 ? 8 : needed > 2 ? 4 : 2;
    if (storage == STORAGE_BF16) return needed > 4 ? 6 : needed > 2 ? 4 : 2;
    return needed >= 6 ? 6 : needed == 5 ? 4 : (int)needed;
}

/* One task's rows, some columns of one head. */
static void LEVEL(aggregate_task)(const sparse_rows *a, const dense_rows *h, int64_t t, column_block span,
                                  int accumulate, char *out) {
    const int64_t stop = span.first + span.num_columns;
    for (int64_t first = span.first; first < stop;) {
        const int64_t left = stop - first;
        const int n = LEVEL(pass_vectors)((left + LANES - 1) / LANES, h->storage);
        const column_block block = {first, left < n * LANES ? left : n * LANES, span.head};
        if (h->packed.message)
            LEVEL(sum_packed)(a, h, t, block, n, accumulate, out);
#if HAS_WHOLE
        else if (block.num_columns == n * LANES)
            LEVEL(sum_whole)(a, h, t, block, n, accumulate, out);
#endif
        else
            LEVEL(sum_partial)(a, h, t, block, n, accumulate, out);
        first += block.num_columns;
    }
}
