/* Kernel body, compiled once per SIMD level by code_aggregation.c. A vector holds 2 * LANES columns as 16-bit sums. */
#include "vector.h"
#include "code_sums_body.h"

/* Sums of n <= COLUMNS columns into out, or added to it. */
INLINE void LEVEL(flush)(vector_sums sum, int64_t n, int is_added, int is_signed, int32_t *out) {
    for (int half = 0; half < 2; half++) {
        const int64_t left = n - half * LANES, count = left < LANES ? left : LANES;
        if (count <= 0) return;
        vector_f32 old = {0};
        if (is_added) old = LEVEL(load_columns)(out, half * LANES, n, STORAGE_F32);
        const vector_i32 total = (vector_i32)old + LEVEL(widen_sums)(sum, half, is_signed);
        LEVEL(store_columns)(out, half * LANES, n, STORAGE_F32, (vector_f32)total);
    }
}

/* One row, one block of at most num_vectors * COLUMNS columns. The last three arguments are constants. */
INLINE int LEVEL(sum_block)(const code_rows *a, int64_t v, code_block block, int32_t *out, int num_vectors,
                            int is_signed, int is_far) {
    const int64_t end = a->indptr[v + 1], last = a->num_entries - 1;
    const uint8_t *first = a->num_codes ? a->codes + block.first : NULL;
    uint8_t copy[MAX_VECTORS * COLUMNS] = {0};
    int64_t e = a->indptr[v];
    int is_added = 0;
    do {
        const int64_t stop = end - e < ENTRIES_A_FLUSH ? end : e + ENTRIES_A_FLUSH;
        vector_sums sum[MAX_VECTORS];
        for (int i = 0; i < num_vectors; i++) sum[i] = (vector_sums){0};
        for (; e < stop; e++) {
            const int64_t u = a->indices[e];
            if (__builtin_expect((uint64_t)u >= (uint64_t)a->num_codes, 0)) return CODES_BAD_ENTRY;
            if (is_far) {
                const uint8_t *next = first + a->indices[e + PREFETCH_ENTRIES < last ? e + PREFETCH_ENTRIES : last] * a->dim;
                for (int b = 0; b < num_vectors * COLUMNS; b += CACHE_LINE) __builtin_prefetch(next + b);
                __builtin_prefetch(next + num_vectors * COLUMNS - 1);
            }
            const uint8_t *codes = first + u * a->dim;
            if (__builtin_expect(u > block.whole_to, 0)) {
                memcpy(copy, codes, (size_t)block.num_columns);
                codes = copy;
            }
            for (int i = 0; i < num_vectors; i++) sum[i] += LEVEL(load_byte_codes)(codes + i * COLUMNS, is_signed);
        }
        for (int i = 0; i < num_vectors; i++)
            LEVEL(flush)(sum[i], block.num_columns - i * COLUMNS < COLUMNS ? block.num_columns - i * COLUMNS : COLUMNS,
                         is_added, is_signed, out + block.first + i * COLUMNS);
        is_added = 1;
    } while (e < end);
    return CODES_SUMMED;
}

#define SUM_ROWS_OF(n) \
    case n: \
        for (int64_t v = begin; v < end && !fault; v++) \
            fault = LEVEL(sum_block)(a, v, block, out + v * a->dim, n, is_signed, is_far); \
        break

INLINE int LEVEL(sum_blocks)(const code_rows *a, int64_t begin, int64_t end, code_block block, int num_vectors,
                             int32_t *out, int is_signed, int is_far) {
    int fault = CODES_SUMMED;
    switch (num_vectors) {
        SUM_ROWS_OF(1);
        SUM_ROWS_OF(2);
        SUM_ROWS_OF(3);
        SUM_ROWS_OF(4);
        SUM_ROWS_OF(6);
        SUM_ROWS_OF(8);
    }
    return fault;
}
#undef SUM_ROWS_OF

static int LEVEL(pass_vectors)(int64_t needed) {
    return needed >= MAX_VECTORS ? MAX_VECTORS : needed == 7 ? 6 : needed == 5 ? 4 : (int)needed;
}

/* The rows begin .. end - 1. */
static int LEVEL(sum_rows)(const code_rows *a, int64_t begin, int64_t end, int32_t *out) {
    const int is_far = a->num_codes * a->dim > CACHED_BYTES;
    int fault = CODES_SUMMED;
    for (int64_t done = 0; done < a->dim && !fault;) {
        const int64_t left = a->dim - done;
        const int n = LEVEL(pass_vectors)((left + COLUMNS - 1) / COLUMNS);
        code_block block = {done, left < n * COLUMNS ? left : n * COLUMNS, a->num_codes - 1};
        if (block.num_columns < n * COLUMNS) {
            const int64_t room = a->num_codes * a->dim - done - n * COLUMNS;
            block.whole_to = room < 0 ? -1 : room / a->dim;
        }
        if (a->is_signed)
            fault = is_far ? LEVEL(sum_blocks)(a, begin, end, block, n, out, 1, 1)
                           : LEVEL(sum_blocks)(a, begin, end, block, n, out, 1, 0);
        else
            fault = is_far ? LEVEL(sum_blocks)(a, begin, end, block, n, out, 0, 1)
                           : LEVEL(sum_blocks)(a, begin, end, block, n, out, 0, 0);
        done += block.num_columns;
    }
    return fault;
}
