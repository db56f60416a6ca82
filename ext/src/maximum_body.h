/* Kernel body, compiled once per SIMD level by maximum.c. */
#include "vector.h"

INLINE void LEVEL(fetch_row)(const char *row, int64_t num_bytes) {
    for (int64_t b = 0; b < num_bytes; b += CACHE_LINE) __builtin_prefetch(row + b);
}

/* Columns of a row from `first` on, at most num_vectors vectors. If is_whole, the table goes on behind the row, and
 * whole vectors are read. All but the first four arguments are constants. */
INLINE void LEVEL(load_block)(vector_f32 *x, const char *row, int64_t first, int64_t dim, int num_vectors, int is_whole,
                              int storage) {
    for (int i = 0; i < num_vectors; i++)
        x[i] = is_whole ? LEVEL(load)(row, first + i * LANES, storage)
                        : LEVEL(load_columns)(row, first + i * LANES, dim, storage);
}

/* The last row whose num_vectors whole vectors from column `first` on lie within the table. */
INLINE int64_t LEVEL(last_whole_row)(int64_t num_rows, int64_t dim, int64_t first, int num_vectors) {
    const int64_t elements = num_rows * dim - first - num_vectors * LANES;
    return elements < 0 ? -1 : elements / dim;
}

/* A larger number is taken, or the first NaN. */
INLINE void LEVEL(take_larger)(vector_f32 *best, vector_i32 *where, vector_f32 x, int32_t u) {
#if LEVEL_LANES == 16
    const __mmask16 is_number = _mm512_cmp_ps_mask((__m512)*best, (__m512)*best, _CMP_ORD_Q);
    const __mmask16 is_taken = _mm512_mask_cmp_ps_mask(is_number, (__m512)x, (__m512)*best, _CMP_NLE_UQ);
    *best = (vector_f32)_mm512_mask_mov_ps((__m512)*best, is_taken, (__m512)x);
    *where = (vector_i32)_mm512_mask_set1_epi32((__m512i)*where, is_taken, u);
#else
    const vector_i32 is_taken = ~(x <= *best) & (*best == *best);
    *best = (vector_f32)((is_taken & (vector_i32)x) | (~is_taken & (vector_i32)*best));
    *where = (is_taken & u) | (~is_taken & *where);
#endif
}

INLINE void LEVEL(maximum_columns)(const maximum_rows *a, int64_t v, const char *rows, int64_t num_rows, int64_t dim,
                                   int64_t first, char *out, int32_t *argmax, int num_vectors, int storage) {
    const int64_t size = storage_bytes(storage), row_bytes = dim * size, begin = a->begin[v];
    const int64_t last = LEVEL(last_whole_row)(num_rows, dim, first, num_vectors);
    vector_f32 best[MAX_VECTORS], x[MAX_VECTORS];
    vector_i32 where[MAX_VECTORS];
    for (int i = 0; i < num_vectors; i++) {
        best[i] = (vector_f32){0};
        where[i] = (vector_i32){0} - 1;
    }
    for (int64_t e = begin; e < a->end[v]; e++) {
        if (e + PREFETCH_ENTRIES < a->num_entries)
            LEVEL(fetch_row)(rows + a->indices[e + PREFETCH_ENTRIES] * row_bytes + first * size,
                             num_vectors * LANES * size);
        const int32_t u = a->indices[e];
        if (__builtin_expect(u <= last, 1))
            LEVEL(load_block)(x, rows + u * row_bytes, first, dim, num_vectors, 1, storage);
        else
            LEVEL(load_block)(x, rows + u * row_bytes, first, dim, num_vectors, 0, storage);
        if (e > begin)
            for (int i = 0; i < num_vectors; i++) LEVEL(take_larger)(&best[i], &where[i], x[i], u);
        else
            for (int i = 0; i < num_vectors; i++) {
                best[i] = x[i];
                where[i] = (vector_i32){0} + u;
            }
    }
    for (int i = 0; i < num_vectors; i++) {
        const int64_t j = first + i * LANES;
        LEVEL(store_columns)(out + v * row_bytes, j, dim, storage, best[i]);
        /* Integers pass through a float register unchanged. */
        LEVEL(store_columns)(argmax + v * dim, j, dim, STORAGE_F32, (vector_f32)where[i]);
    }
}

INLINE void LEVEL(gather_columns)(const maximum_rows *a, int64_t u, const char *gradient, const int32_t *argmax,
                                  int64_t num_rows, int64_t dim, int64_t first, char *out, int num_vectors,
                                  int storage) {
    const int64_t size = storage_bytes(storage), row_bytes = dim * size;
    const int64_t last = LEVEL(last_whole_row)(num_rows, dim, first, num_vectors);
    vector_f32 sum[MAX_VECTORS], g[MAX_VECTORS], where[MAX_VECTORS];
    for (int i = 0; i < num_vectors; i++) sum[i] = (vector_f32){0};
    for (int64_t e = a->begin[u]; e < a->end[u]; e++) {
        if (e + PREFETCH_ENTRIES < a->num_entries) {
            const int64_t next = a->indices[e + PREFETCH_ENTRIES];
            LEVEL(fetch_row)(gradient + next * row_bytes + first * size, num_vectors * LANES * size);
            LEVEL(fetch_row)((const char *)(argmax + next * dim + first), num_vectors * LANES * 4);
        }
        const int64_t v = a->indices[e];
        if (e > a->begin[u] && v == a->indices[e - 1]) continue;
        if (__builtin_expect(v <= last, 1)) {
            LEVEL(load_block)(g, gradient + v * row_bytes, first, dim, num_vectors, 1, storage);
            LEVEL(load_block)(where, (const char *)(argmax + v * dim), first, dim, num_vectors, 1, STORAGE_F32);
        } else {
            LEVEL(load_block)(g, gradient + v * row_bytes, first, dim, num_vectors, 0, storage);
            LEVEL(load_block)(where, (const char *)(argmax + v * dim), first, dim, num_vectors, 0, STORAGE_F32);
        }
        for (int i = 0; i < num_vectors; i++)
            sum[i] += (vector_f32)(((vector_i32)where[i] == (int32_t)u) & (vector_i32)g[i]);
    }
    for (int i = 0; i < num_vectors; i++)
        LEVEL(store_columns)(out + u * row_bytes, first + i * LANES, dim, storage, sum[i]);
}

/* Vectors of the next block of `needed` ones: with their indices, 8 fill half of AVX-512's registers. */
INLINE int64_t LEVEL(block_width)(int64_t needed) {
    if (LANES == 16 && needed >= MAX_VECTORS) return MAX_VECTORS;
    return needed >= 4 ? 4 : needed;
}

/* Splits the columns of each row of a task into blocks. CALL(n) takes a block of n vectors from `first` on. */
#define FOR_BLOCKS(v, CALL) \
    for (int64_t v = a->task[t]; v < a->task[t + 1]; v++) \
        for (int64_t first = 0, width; first < dim; first += width * LANES) { \
            width = LEVEL(block_width)((dim - first + LANES - 1) / LANES); \
            switch (width) { \
                case 1: CALL(1); break; \
                case 2: CALL(2); break; \
                case 3: CALL(3); break; \
                case 4: CALL(4); break; \
                case 8: CALL(8); break; \
            } \
        }

/* One function per storage, since a single one for all would take longer to compile. */
#define FORWARD_BLOCK(n) LEVEL(maximum_columns)(a, v, rows, num_rows, dim, first, out, argmax, n, storage)
#define FORWARD_AS(name, storage_of_rows) \
    static __attribute__((noinline)) void LEVEL(name)(const maximum_rows *a, int64_t t, const void *rows, \
                                                      int64_t num_rows, int64_t dim, void *out, int32_t *argmax) { \
        enum { storage = storage_of_rows }; \
        FOR_BLOCKS(v, FORWARD_BLOCK) \
    }
#define BACKWARD_BLOCK(n) LEVEL(gather_columns)(a, u, gradient, argmax, num_rows, dim, first, out, n, storage)
#define BACKWARD_AS(name, storage_of_rows) \
    static __attribute__((noinline)) void LEVEL(name)(const maximum_rows *a, int64_t t, const void *gradient, \
                                                      const int32_t *argmax, int64_t num_rows, int64_t dim, \
                                                      void *out) { \
        enum { storage = storage_of_rows }; \
        FOR_BLOCKS(u, BACKWARD_BLOCK) \
    }
FORWARD_AS(maximum_f32, STORAGE_F32)
FORWARD_AS(maximum_bf16, STORAGE_BF16)
FORWARD_AS(maximum_f16, STORAGE_F16)
BACKWARD_AS(maximum_backward_f32, STORAGE_F32)
BACKWARD_AS(maximum_backward_bf16, STORAGE_BF16)
BACKWARD_AS(maximum_backward_f16, STORAGE_F16)
#undef FOR_BLOCKS
#undef FORWARD_BLOCK
#undef FORWARD_AS
#undef BACKWARD_BLOCK
#undef BACKWARD_AS

static void LEVEL(maximum_task)(const maximum_rows *a, int64_t t, const void *rows, int64_t num_rows, int64_t dim,
                                int storage, void *out, int32_t *argmax) {
    switch (storage) {
    case STORAGE_F32: LEVEL(maximum_f32)(a, t, rows, num_rows, dim, out, argmax); break;
    case STORAGE_BF16: LEVEL(maximum_bf16)(a, t, rows, num_rows, dim, out, argmax); break;
    case STORAGE_F16: LEVEL(maximum_f16)(a, t, rows, num_rows, dim, out, argmax); break;
    }
}

static void LEVEL(maximum_backward_task)(const maximum_rows *a, int64_t t, const void *gradient, const int32_t *argmax,
                                         int64_t num_rows, int64_t dim, int storage, void *out) {
    switch (storage) {
    case STORAGE_F32: LEVEL(maximum_backward_f32)(a, t, gradient, argmax, num_rows, dim, out); break;
    case STORAGE_BF16: LEVEL(maximum_backward_bf16)(a, t, gradient, argmax, num_rows, dim, out); break;
    case STORAGE_F16: LEVEL(maximum_backward_f16)(a, t, gradient, argmax, num_rows, dim, out); break;
    }
}
