/* Kernel body, compiled once a SIMD level by batched_layers.c, after bit_gemm.c has brought vector.h. */
#include "code_sums_body.h"

/* sum + a[0] b[0] + a[1] b[1] in each 32-bit lane, of pairs of 16 bits. */
INLINE vector_i32 LEVEL(add_pairs)(vector_i32 sum, vector_i32 a, vector_i32 b) {
#if defined(LEVEL_COUNTS_BITS)
    return (vector_i32)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif LEVEL_LANES == 16
    return sum + (vector_i32)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif LEVEL_LANES == 8
    return sum + (vector_i32)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return sum + (vector_i32)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* Codes of a row as 16 bits, with a zero after an odd number. */
static void LEVEL(widen_codes)(const uint8_t *codes, int64_t dim, int is_signed, int16_t *wide) {
    if (is_signed)
#pragma omp simd
        for (int64_t k = 0; k < dim; k++) wide[k] = ((const int8_t *)codes)[k];
    else
#pragma omp simd
        for (int64_t k = 0; k < dim; k++) wide[k] = codes[k];
    if (dim % 2) wide[dim] = 0;
}

/* Sums that stay in registers: LINES rows of PANEL_VECTORS vectors. */
#undef LINES
#define LINES (LANES == 16 ? 8 : 4)
#define PANEL_VECTORS 2

/* Products of LINES rows and n vectors of outputs from `first` on; n is a constant. */
INLINE void LEVEL(multiply_pairs)(const weight_pairs *w, const int16_t *wide, int64_t stride, int64_t first, int n,
                                  int32_t *sums) {
    const int64_t width = padded_to(w->out_dim, PADDING), num_pairs = (w->in_dim + 1) / 2;
    const int16_t *weight[PANEL_VECTORS];
    vector_i32 sum[LINES][PANEL_VECTORS];
    for (int v = 0; v < n; v++) {
        const int64_t output = first + v * LANES;
        weight[v] = w->weight + output / PANEL_OUTPUTS * num_pairs * PANEL_OUTPUTS * 2 + output % PANEL_OUTPUTS * 2;
    }
#pragma GCC unroll 8
    for (int r = 0; r < LINES; r++)
        for (int v = 0; v < n; v++) sum[r][v] = (vector_i32){0};
    for (int64_t k = 0; k < num_pairs; k++) {
        vector_i32 outputs[PANEL_VECTORS];
        for (int v = 0; v < n; v++) memcpy(&outputs[v], weight[v] + k * PANEL_OUTPUTS * 2, sizeof outputs[v]);
#pragma GCC unroll 8
        for (int r = 0; r < LINES; r++) {
            int32_t pair;
            memcpy(&pair, wide + r * stride + 2 * k, sizeof pair);
            const vector_i32 codes = (vector_i32){0} + pair;
            for (int v = 0; v < n; v++) sum[r][v] = LEVEL(add_pairs)(sum[r][v], codes, outputs[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < LINES; r++)
        for (int v = 0; v < n; v++) memcpy(sums + r * width + first + v * LANES, &sum[r][v], sizeof sum[r][v]);
}

/* codes (num_lines <= BLOCK_LINES rows, stride apart) times the weights, into rows of sums, padded as outputs are. The
 * weights of a panel stay in the first cache while all rows meet them. */
static void LEVEL(multiply_codes)(const weight_pairs *w, const uint8_t *codes, int64_t stride, int64_t num_lines,
                                  int is_signed, const batch_space *space, int32_t *sums) {
    const int64_t wide_stride = padded_to(w->in_dim, 2), used = padded_to(w->out_dim, LANES);
    const int64_t width = padded_to(w->out_dim, PADDING);
    for (int64_t r = 0; r < num_lines; r++)
        LEVEL(widen_codes)(codes + r * stride, w->in_dim, is_signed, space->wide + r * wide_stride);
    for (int64_t first = 0; first < used; first += PANEL_VECTORS * LANES)
        for (int64_t r = 0; r < num_lines; r += LINES)
            if (first + LANES < used)
                LEVEL(multiply_pairs)(w, space->wide + r * wide_stride, wide_stride, first, 2, sums + r * width);
            else
                LEVEL(multiply_pairs)(w, space->wide + r * wide_stride, wide_stride, first, 1, sums + r * width);
}

/* sign(x) min(floor(|x| / step + 0.5), limit). */
INLINE vector_i32 LEVEL(codes_of)(vector_f32 x, float step, float limit) {
    const vector_i32 sign = (vector_i32)x >> 31;
    vector_f32 level = (vector_f32)((vector_i32)x & 0x7fffffff) / step + 0.5f;
    const vector_i32 is_within = level < limit;
    level = (vector_f32)(((vector_i32)level & is_within) | ((vector_i32)((vector_f32){0} + limit) & ~is_within));
    return (__builtin_convertvector(level, vector_i32) ^ sign) - sign;
}

INLINE void LEVEL(store_bytes)(uint8_t *row, vector_i32 codes) {
#if LEVEL_LANES == 16
    _mm_storeu_si128((__m128i *)row, _mm512_cvtepi32_epi8((__m512i)codes));
#elif LEVEL_LANES == 8
    const __m256i low_bytes = _mm256_shuffle_epi8((__m256i)codes, _mm256_set1_epi32(0x0c080400));
    const __m128i four = _mm256_castsi256_si128(low_bytes), others = _mm256_extracti128_si256(low_bytes, 1);
    _mm_storel_epi64((__m128i *)row, _mm_unpacklo_epi32(four, others));
#else
    for (int i = 0; i < LANES; i++) row[i] = (uint8_t)codes[i];
#endif
}

INLINE vector_i32 LEVEL(load_signed_bytes)(const uint8_t *codes) {
#if LEVEL_LANES == 16
    return (vector_i32)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)codes));
#elif LEVEL_LANES == 8
    return (vector_i32)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)codes));
#else
    vector_i32 wide;
    for (int i = 0; i < LANES; i++) wide[i] = ((const int8_t *)codes)[i];
    return wide;
#endif
}

INLINE vector_f32 LEVEL(rectified)(vector_f32 x) { return (vector_f32)((vector_i32)x & ~(vector_i32)(x <= 0.0f)); }

INLINE int LEVEL(has_nan)(vector_i32 mask) {
    int32_t lane[LANES], any = 0;
    memcpy(lane, &mask, sizeof lane);
    for (int i = 0; i < LANES; i++) any |= lane[i];
    return any ? LAYERS_NAN : LAYERS_FINE;
}

/* B of a batch's rows: padded rows of signed codes. */
static int LEVEL(map_rows)(const batched_layer *layer, int64_t begin, int64_t num_rows, const uint8_t *codes,
                           int64_t stride, const batch_space *space) {
    const int64_t width = padded_to(layer->map.out_dim, PADDING), used = padded_to(layer->map.out_dim, LANES);
    vector_i32 is_nan = {0};
    for (int64_t i = 0; i < num_rows; i += BLOCK_LINES) {
        const int64_t left = num_rows - i, lines = left < BLOCK_LINES ? left : BLOCK_LINES;
        LEVEL(multiply_codes)(&layer->map, codes + i * stride, stride, lines, layer->reads_signed, space,
                              space->sums);
        for (int64_t r = 0; r < lines; r++) {
            const int64_t row = begin + i + r;
            const float factor = layer->scales_mapped ? layer->row_factor[row] : 1.0f;
            const float scale = layer->row_step[row] * factor;
            for (int64_t j = 0; j < used; j += LANES) {
                vector_i32 sum;
                memcpy(&sum, space->sums + r * width + j, sizeof sum);
                const vector_f32 x = __builtin_convertvector(sum, vector_f32) * scale * LEVEL(load_f32)(layer->ratio + j);
                is_nan |= x != x;
                LEVEL(store_bytes)(space->mapped + (i + r) * width + j, LEVEL(codes_of)(x, 1.0f, layer->mapped_limit));
            }
        }
    }
    return LEVEL(has_nan)(is_nan);
}

/* Sums over the in-neighbors of one row: n vectors of columns from `first` on; n is a constant. */
INLINE void LEVEL(gather_columns)(const int32_t *entries, int64_t count, uintptr_t rows, int64_t width, int n,
                                  int32_t *sums) {
    int64_t e = 0;
    int is_added = 0;
    do {
        const int64_t stop = count - e < ENTRIES_A_FLUSH ? count : e + ENTRIES_A_FLUSH;
        vector_sums sum[4];
        for (int v = 0; v < n; v++) sum[v] = (vector_sums){0};
        for (; e < stop; e++)
            for (int v = 0; v < n; v++)
                sum[v] += LEVEL(load_byte_codes)((const uint8_t *)(rows + (uintptr_t)(entries[e] * width + v * COLUMNS)), 1);
        for (int v = 0; v < 2 * n; v++) {
            vector_i32 total = LEVEL(widen_sums)(sum[v / 2], v % 2, 1), old = {0};
            if (is_added) memcpy(&old, sums + v * LANES, sizeof old);
            total += old;
            memcpy(sums + v * LANES, &total, sizeof total);
        }
        is_added = 1;
    } while (e < count);
}

/* Entries name rows of the whole object; `rows` is the address at which row 0 would lie, which need not be memory. */
static void LEVEL(gather_row)(const int32_t *entries, int64_t count, uintptr_t rows, int64_t width, int64_t used,
                              int32_t *sums) {
    const int64_t needed = padded_to(used, COLUMNS);
    for (int64_t first = 0; first < needed;) {
        const int64_t left = (needed - first) / COLUMNS;
        if (left >= 4)
            LEVEL(gather_columns)(entries, count, rows + (uintptr_t)first, width, 4, sums + first);
        else if (left >= 2)
            LEVEL(gather_columns)(entries, count, rows + (uintptr_t)first, width, 2, sums + first);
        else
            LEVEL(gather_columns)(entries, count, rows + (uintptr_t)first, width, 1, sums + first);
        first += (left >= 4 ? 4 : left >= 2 ? 2 : 1) * COLUMNS;
    }
}

/* z of the first map of one row, with ReLU where it is asked for. */
INLINE int LEVEL(scale_sums)(const batched_layer *layer, int64_t row, const uint8_t *near, const int32_t *own,
                             const int32_t *sums, int64_t used, int rectifies, float *out) {
    vector_i32 is_nan = {0};
    for (int64_t j = 0; j < used; j += LANES) {
        vector_i32 sum, near_codes = {0}, own_sum;
        memcpy(&sum, sums + j, sizeof sum);
        if (layer->adds_near) near_codes = LEVEL(load_signed_bytes)(near + j);
        vector_f32 x = __builtin_convertvector(sum + near_codes, vector_f32);
        if (layer->adds_near) x += __builtin_convertvector(near_codes, vector_f32) * layer->epsilon;
        if (layer->row_factor) x *= layer->row_factor[row];
        x *= LEVEL(load_f32)(layer->mapped_step + j);
        if (layer->own.weight) {
            memcpy(&own_sum, own + j, sizeof own_sum);
            x += __builtin_convertvector(own_sum, vector_f32) * layer->row_step[row] *
                 LEVEL(load_f32)(layer->own_scale + j);
        }
        x += LEVEL(load_f32)(layer->bias + j);
        is_nan |= x != x;
        LEVEL(store)(out, j, STORAGE_F32, rectifies ? LEVEL(rectified)(x) : x);
    }
    return LEVEL(has_nan)(is_nan);
}

/* The second map of some rows, from their values in space->rows to their values there. */
static int LEVEL(map_again)(const batched_layer *layer, int64_t begin, int64_t lines, int rectifies,
                            const batch_space *space) {
    const int64_t in_dim = layer->second.in_dim, in_width = padded_to(in_dim, PADDING);
    const int64_t width = padded_to(layer->second.out_dim, PADDING), used = padded_to(layer->second.out_dim, LANES);
    vector_i32 is_nan = {0};
    for (int64_t r = 0; r < lines; r++)
        for (int64_t j = 0; j < padded_to(in_dim, LANES); j += LANES)
            LEVEL(store_bytes)(space->between + r * in_width + j,
                               LEVEL(codes_of)(LEVEL(load_f32)(space->rows + r * space->row_stride + j),
                                               layer->second_step[begin + r], layer->second_limit[begin + r]));
    LEVEL(multiply_codes)(&layer->second, space->between, in_width, lines, 0, space, space->sums);
    for (int64_t r = 0; r < lines; r++)
        for (int64_t j = 0; j < used; j += LANES) {
            vector_i32 sum;
            memcpy(&sum, space->sums + r * width + j, sizeof sum);
            vector_f32 x = __builtin_convertvector(sum, vector_f32) * layer->second_step[begin + r];
            x *= LEVEL(load_f32)(layer->second_scale + j);
            x += LEVEL(load_f32)(layer->second_bias + j);
            is_nan |= x != x;
            LEVEL(store)(space->rows + r * space->row_stride, j, STORAGE_F32, rectifies ? LEVEL(rectified)(x) : x);
        }
    return LEVEL(has_nan)(is_nan);
}

/* Sums of a batch by tiles, (num_rows, out_dim) in space->tiled. */
static int LEVEL(sum_tiles)(const batch_tiles *a, const batched_layer *layer, int64_t b, const batch_space *space) {
    const int64_t begin = a->row_begin[b], num_rows = a->row_begin[b + 1] - begin, dim = layer->map.out_dim;
    for (int64_t i = 0; i < num_rows; i++)
        memcpy(space->dense + i * dim, space->mapped + i * padded_to(dim, PADDING), (size_t)dim);
    const signed_rows rows = {space->dense, dim, layer->mapped_bits};
    return sum_batch(a, &rows, b, 0, space->tiled) < 0 ? LAYERS_SHORT : LAYERS_FINE;
}

/* One row's sums over its neighbors and itself, as values in `out`. */
INLINE int LEVEL(sum_row)(const batch_tiles *a, const batched_model *m, const batched_layer *layer, int64_t begin,
                          int64_t i, int by_tiles, int rectifies, const batch_space *space, const int32_t *own,
                          float *out) {
    const int64_t dim = layer->map.out_dim, width = padded_to(dim, PADDING), used = padded_to(dim, LANES);
    const int64_t row = begin + i, first = a->indptr[row];
    if (by_tiles)
        memcpy(space->sums, space->tiled + i * dim, (size_t)dim * 4);
    else
        LEVEL(gather_row)(m->indices + first, a->indptr[row + 1] - first,
                          (uintptr_t)space->mapped - (uintptr_t)(begin * width), width, used, space->sums);
    return LEVEL(scale_sums)(layer, row, space->mapped + i * width, own, space->sums, used, rectifies, out);
}

/* Values of one row to where they go: logits, or codes of the next convolution. */
INLINE void LEVEL(hand_on)(const batched_layer *next, int is_last_but_one, int64_t row, int64_t i, int64_t dim,
                           const float *values, uint8_t *next_codes, float *logits, float *hidden) {
    if (!next || (hidden && is_last_but_one)) memcpy((next ? hidden : logits) + row * dim, values, (size_t)dim * 4);
    if (!next) return;
    uint8_t *codes = next_codes + i * padded_to(dim, PADDING);
    for (int64_t j = 0; j < padded_to(dim, LANES); j += LANES)
        LEVEL(store_bytes)(codes + j, LEVEL(codes_of)(LEVEL(load_f32)(values + j), next->row_step[row],
                                                      next->row_limit[row]));
}

/* Convolution l of batch b, whose mapped rows are there; it reads `codes`, rows of `stride`. */
static int LEVEL(convolve)(const batch_tiles *a, const batched_model *m, int64_t l, int64_t b, const uint8_t *codes,
                           int64_t stride, const batch_space *space, float *logits, float *hidden) {
    const batched_layer *layer = &m->layers[l], *next = l + 1 < m->num_layers ? layer + 1 : NULL;
    const int64_t begin = a->row_begin[b], num_rows = a->row_begin[b + 1] - begin;
    const int has_second = layer->second.weight != NULL, by_tiles = layer->takes_tiles[b];
    const int64_t out_dim = has_second ? layer->second.out_dim : layer->map.out_dim;
    int faults = by_tiles ? LEVEL(sum_tiles)(a, layer, b, space) : LAYERS_FINE;
    if (faults) return faults;
    for (int64_t i = 0; i < num_rows; i += BLOCK_LINES) {
        const int64_t left = num_rows - i, lines = left < BLOCK_LINES ? left : BLOCK_LINES;
        if (layer->own.weight)
            LEVEL(multiply_codes)(&layer->own, codes + i * stride, stride, lines, layer->reads_signed, space, space->own);
        for (int64_t r = 0; r < lines; r++)
            faults |= LEVEL(sum_row)(a, m, layer, begin, i + r, by_tiles, next || has_second, space,
                                     space->own + r * padded_to(layer->own.out_dim, PADDING),
                                     space->rows + r * space->row_stride);
        if (has_second) faults |= LEVEL(map_again)(layer, begin + i, lines, next != NULL, space);
        for (int64_t r = 0; r < lines; r++)
            LEVEL(hand_on)(next, l + 2 == m->num_layers, begin + i + r, i + r, out_dim,
                           space->rows + r * space->row_stride, space->codes[(l + 1) % 2], logits, hidden);
    }
    return faults;
}

static int LEVEL(forward_batch)(const batch_tiles *a, const batched_model *m, int64_t b,
                                const batch_space *space, float *logits, float *hidden) {
    const int64_t begin = a->row_begin[b], num_rows = a->row_begin[b + 1] - begin, in_dim = m->layers[0].map.in_dim;
    int faults = LAYERS_FINE;
    for (int64_t l = 0; l < m->num_layers; l++) {
        const batched_layer *layer = &m->layers[l];
        const uint8_t *codes = l ? space->codes[l % 2] : m->codes + begin * in_dim;
        const int64_t stride = l ? padded_to(layer->map.in_dim, PADDING) : in_dim;
        faults |= LEVEL(map_rows)(layer, begin, num_rows, codes, stride, space);
        faults |= LEVEL(convolve)(a, m, l, b, codes, stride, space, logits, hidden);
    }
    return faults;
}
