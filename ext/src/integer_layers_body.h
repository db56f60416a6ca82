/* Kernel body, compiled once per SIMD level by integer_layers.c, which includes bit_gemm.c first; the levels of
 * bit_gemm.c have included vector.h. Loops read layers and spaces from local copies, which no store can change. */
#ifdef LEVEL_SUMS_BYTES
#include "vector.h"
#endif
#include "code_products_body.h"
#include "code_sums_body.h"
#include "packed_fields_body.h"
#include "row_codes_body.h"
#include "row_moments_body.h"

/* Rows that are multiplied together, a multiple of ROWS: their codes stay in the nearest cache. */
#undef BLOCK_ROWS_HERE
#define BLOCK_ROWS_HERE (WORD == 4 ? MOST_BLOCK_ROWS : 16)

/* Expand one row's planes to codes as unsigned bytes, see offset_of. Columns past the last one, to a multiple of 64 or
 * 32, get the code whose bits are all zero. */
static void LEVEL(expand_row)(const code_planes *rows, int64_t row, int64_t dim, uint8_t *codes) {
    const int64_t first = rows->begin ? rows->begin[row] : row;
    const int num_planes = rows->begin ? (int)(rows->begin[row + 1] - first) : rows->num_planes;
    const int64_t plane = rows->begin ? rows->row_words : rows->num_padded * rows->row_words;
    const uint32_t *words = rows->words + first * rows->row_words;
    const uint8_t start = rows->begin && rows->is_signed ? (uint8_t)(128 - (1 << (num_planes - 1))) : 0;
#if LEVEL_LANES == 16
    for (int64_t k = 0; k < dim; k += 64) {
        __m512i code = _mm512_set1_epi8((char)start);
        for (int p = 0; p < num_planes; p++) {
            uint64_t bits;
            memcpy(&bits, words + p * plane + k / 32, sizeof bits);
            code = _mm512_mask_add_epi8(code, bits, code, _mm512_set1_epi8((char)(1 << p)));
        }
        _mm512_storeu_si512(codes + k, code);
    }
#elif LEVEL_LANES == 8
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    for (int64_t k = 0; k < dim; k += 32) {
        __m256i code = _mm256_set1_epi8((char)start);
        for (int p = 0; p < num_planes; p++) {
            const __m256i bits = _mm256_shuffle_epi8(_mm256_set1_epi32((int)words[p * plane + k / 32]), spread);
            const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit);
            code = _mm256_add_epi8(code, _mm256_and_si256(is_set, _mm256_set1_epi8((char)(1 << p))));
        }
        _mm256_storeu_si256((__m256i *)(codes + k), code);
    }
#else
    for (int64_t k = 0; k < dim; k += 32) {
        uint8_t code[32];
        memset(code, start, sizeof code);
        for (int p = 0; p < num_planes; p++) {
            const uint32_t word = words[p * plane + k / 32];
            for (int i = 0; i < 32; i++) code[i] = (uint8_t)(code[i] + ((word >> i & 1) << p));
        }
        memcpy(codes + k, code, sizeof code);
    }
#endif
}

/* sums = codes times weights, for num_rows <= BLOCK_ROWS_HERE rows of codes, `stride` apart; whole blocks are read. */
static void LEVEL(multiply_codes)(const weight_panels *w, int64_t dim, const uint8_t *codes, int64_t stride,
                                  int64_t num_rows, const batch_space *space, int32_t *sums) {
#ifndef LEVEL_SUMS_BYTES
    const int64_t word_stride = padded_to(dim, 2);
    for (int64_t r = 0; r < num_rows; r++)
        LEVEL(widen_bytes_to_words)(codes + r * stride, dim, space->halves + r * word_stride);
    codes = (const uint8_t *)space->halves;
    stride = word_stride * 2;
#endif
    LEVEL(multiply_words)(codes, stride, num_rows, w->num_words, w, 0, sums, NULL, dim);
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

/* Map the codes of `lines` rows from `row` on (B of integer_model.py): padded rows of signed codes go to `mapped`. If
 * the panels also hold the weights of the row itself, the sums with these go to `own`. */
INLINE void LEVEL(map_block)(const integer_layer layer, const int32_t *in_degree, int64_t row, int64_t lines,
                             const uint8_t *codes, int64_t stride, const batch_space space, uint8_t *mapped,
                             int32_t *own, vector_i32 *is_nan) {
    const int64_t sums_width = layer.panels.num_outputs, own_first = padded_to(layer.map.num_outputs, PANEL_PADDING);
    const int64_t used = padded_to(layer.map.num_outputs, LANES), own_width = sums_width - own_first;
    const int is_packed = layer.stored_bits < 8, shift = is_packed ? 1 << (layer.stored_bits - 1) : 0;
    const code_scale scale = LEVEL(scale_of)(1, layer.mapped_limit);
    LEVEL(multiply_codes)(&layer.panels, layer.map.dim, codes, stride, lines, &space, space.sums);
    for (int64_t r = 0; r < lines; r++) {
        const float factor = layer.scales_mapped ? layer.row_factor[row + r] : 1.0f;
        const float row_scale = layer.rows.step[entry_of(&layer.rows, in_degree, row + r)] * factor;
        const int32_t *sums = space.sums + r * sums_width;
        uint8_t *out = mapped + r * layer.mapped_bytes, *row_codes = is_packed ? space.line : out;
        for (int64_t j = 0; j < used; j += LANES) {
            vector_i32 sum;
            memcpy(&sum, sums + j, sizeof sum);
            const vector_f32 x = __builtin_convertvector(sum, vector_f32) * row_scale * LEVEL(load_f32)(layer.ratio + j);
            *is_nan |= x != x;
            LEVEL(store_bytes)(row_codes + j, LEVEL(codes_of)(x, scale) + shift);
        }
        if (is_packed) LEVEL(pack_row)(row_codes, layer.mapped_bytes, layer.stored_bits, out);
        if (own_width) memcpy(own + r * own_width, sums + own_first, (size_t)own_width * 4);
    }
}

/* Sum n vectors of columns over the in-neighbors of one row; row 0 would have them at `rows`. n is a constant. */
INLINE void LEVEL(gather_columns)(const int32_t *entries, int64_t count, uintptr_t rows, int64_t width,
                                  int64_t num_ahead, int n, int32_t *sums) {
    int64_t e = 0;
    int is_added = 0;
    do {
        const int64_t stop = count - e < ENTRIES_A_FLUSH ? count : e + ENTRIES_A_FLUSH;
        vector_sums sum[4];
        for (int v = 0; v < n; v++) sum[v] = (vector_sums){0};
        for (; e < stop; e++) {
            if (e + PREFETCH_ENTRIES < num_ahead)
                __builtin_prefetch((const char *)(rows + (uintptr_t)(entries[e + PREFETCH_ENTRIES] * width)));
            for (int v = 0; v < n; v++)
                sum[v] += LEVEL(load_byte_codes)((const uint8_t *)(rows + (uintptr_t)(entries[e] * width + v * COLUMNS)), 1);
        }
        for (int v = 0; v < 2 * n; v++) {
            vector_i32 total = LEVEL(widen_sums)(sum[v / 2], v % 2, 1), old = {0};
            if (is_added) memcpy(&old, sums + v * LANES, sizeof old);
            total += old;
            memcpy(sums + v * LANES, &total, sizeof total);
        }
        is_added = 1;
    } while (e < count);
}

/* `rows` is the address at which row 0 would lie, which need not be memory. The rows of the first num_ahead entries, of
 * this row and later ones, are prefetched. */
static void LEVEL(gather_row)(const int32_t *entries, int64_t count, uintptr_t rows, int64_t width, int64_t num_ahead,
                              int64_t used, int32_t *sums) {
    const int64_t needed = padded_to(used, COLUMNS);
    for (int64_t first = 0; first < needed;) {
        const int64_t left = (needed - first) / COLUMNS;
        if (left >= 4)
            LEVEL(gather_columns)(entries, count, rows + (uintptr_t)first, width, num_ahead, 4, sums + first);
        else if (left >= 2)
            LEVEL(gather_columns)(entries, count, rows + (uintptr_t)first, width, num_ahead, 2, sums + first);
        else
            LEVEL(gather_columns)(entries, count, rows + (uintptr_t)first, width, num_ahead, 1, sums + first);
        first += (left >= 4 ? 4 : left >= 2 ? 2 : 1) * COLUMNS;
    }
}

/* Codes of one mapped row, a byte each, with a sign. */
INLINE const uint8_t *LEVEL(near_codes)(const uint8_t *row, int64_t row_bytes, int bits, int64_t used, uint8_t *line) {
    if (bits == 8) return row;
    LEVEL(unpack_row)(row, row_bytes, bits, line);
    for (int64_t j = 0; j < used; j += LANES)
        for (int i = 0; i < LANES; i++) line[j + i] = (uint8_t)(line[j + i] - (1 << (bits - 1)));
    return line;
}

/* Values of one row after the first map (z of integer_model.py), with ReLU where `rectifies`. */
INLINE void LEVEL(scale_sums)(const integer_layer layer, int64_t row, float row_step, const uint8_t *near, const int32_t *own,
                              const int32_t *sums, int64_t used, int rectifies, float *out, vector_i32 *is_nan) {
    for (int64_t j = 0; j < used; j += LANES) {
        vector_i32 sum, near_codes = {0}, own_sum;
        memcpy(&sum, sums + j, sizeof sum);
        if (layer.adds_near) near_codes = LEVEL(load_signed_bytes)(near + j);
        vector_f32 x = __builtin_convertvector(sum + near_codes, vector_f32);
        if (layer.adds_near) x += __builtin_convertvector(near_codes, vector_f32) * layer.epsilon;
        if (layer.row_factor) x *= layer.row_factor[row];
        x *= LEVEL(load_f32)(layer.mapped_step + j);
        if (layer.own.codes) {
            memcpy(&own_sum, own + j, sizeof own_sum);
            x += __builtin_convertvector(own_sum, vector_f32) * row_step *
                 LEVEL(load_f32)(layer.own_scale + j);
        }
        x += LEVEL(load_f32)(layer.bias + j);
        *is_nan |= x != x;
        LEVEL(store)(out, j, STORAGE_F32, rectifies ? LEVEL(rectified)(x) : x);
    }
}

/* Codes of values that are not negative. */
INLINE void LEVEL(store_codes_of)(const float *values, int64_t dim, const degree_scales scales, int64_t entry,
                                  uint8_t *codes) {
    const code_scale scale = LEVEL(scale_of)(scales.step[entry], scales.limit[entry]);
    for (int64_t j = 0; j < dim; j += LANES)
        LEVEL(store_bytes)(codes + j, LEVEL(codes_of_positive)(LEVEL(load_f32)(values + j), scale));
}

/* The second map of some rows, in place: it reads their values from space.rows and writes its results there. */
INLINE void LEVEL(map_again)(const integer_layer layer, const int32_t *in_degree, int64_t begin, int64_t lines, int rectifies,
                             const batch_space space, vector_i32 *is_nan) {
    const int64_t in_dim = layer.second.dim, stride = padded_to(in_dim, CODE_PADDING);
    const int64_t width = layer.second_panels.num_outputs, used = padded_to(layer.second.num_outputs, LANES);
    for (int64_t r = 0; r < lines; r++)
        LEVEL(store_codes_of)(space.rows + r * space.row_stride, in_dim, layer.second_rows,
                              entry_of(&layer.second_rows, in_degree, begin + r), space.between + r * stride);
    LEVEL(multiply_codes)(&layer.second_panels, in_dim, space.between, stride, lines, &space, space.sums);
    for (int64_t r = 0; r < lines; r++) {
        const float step = layer.second_rows.step[entry_of(&layer.second_rows, in_degree, begin + r)];
        float *out = space.rows + r * space.row_stride;
        for (int64_t j = 0; j < used; j += LANES) {
            vector_i32 sum;
            memcpy(&sum, space.sums + r * width + j, sizeof sum);
            vector_f32 x = __builtin_convertvector(sum, vector_f32) * step;
            x *= LEVEL(load_f32)(layer.second_scale + j);
            x += LEVEL(load_f32)(layer.second_bias + j);
            *is_nan |= x != x;
            LEVEL(store)(out, j, STORAGE_F32, rectifies ? LEVEL(rectified)(x) : x);
        }
    }
}

/* Sums of a batch by tiles, (num_rows, out_dim) in space->tiled. */
static int LEVEL(sum_tiles)(const batch_tiles *a, const integer_layer *layer, int64_t b, const batch_space *space) {
    const int64_t begin = a->row_begin[b], num_rows = a->row_begin[b + 1] - begin, dim = layer->map.num_outputs;
    for (int64_t i = 0; i < num_rows; i++)
        memcpy(space->dense + i * dim, space->mapped + i * padded_to(dim, PADDING), (size_t)dim);
    const signed_rows rows = {space->dense, dim, layer->mapped_bits};
    return sum_batch(a, &rows, b, 0, space->tiled) < 0 ? LAYERS_SHORT : LAYERS_FINE;
}

/* LayerNorm and ReLU of a row of values, in place. */
INLINE void LEVEL(normalize)(const integer_layer layer, int64_t dim, float *values, vector_i32 *is_nan) {
    float moments[2];
    LEVEL(moments_of)(values, dim, layer.norm_eps, moments);
    for (int64_t j = 0; j < dim; j += LANES) {
        vector_f32 x = (LEVEL(load_f32)(values + j) - moments[0]) * moments[1];
        x = x * LEVEL(load_f32)(layer.norm_weight + j) + LEVEL(load_f32)(layer.norm_bias + j);
        *is_nan |= x != x;
        LEVEL(store)(values, j, STORAGE_F32, LEVEL(rectified)(x));
    }
}

/* Convolution l of `lines` rows from `row` on, whose mapped codes are `near`: writes values to rows of `kept` if it is
 * given, and the codes that the next convolution reads. */
INLINE void LEVEL(convolve_block)(const layer_stack *m, int64_t l, const neighbor_rows from, int64_t row, int64_t lines,
                                  const uint8_t *near, const int32_t *own, const batch_space space, float *kept,
                                  uint8_t *codes, int64_t code_stride, vector_i32 *is_nan) {
    const integer_layer layer = m->layers[l], *next = l + 1 < m->num_layers ? &m->layers[l + 1] : NULL;
    const int64_t dim = layer.map.num_outputs, used = padded_to(dim, LANES), own_width = padded_to(dim, PANEL_PADDING);
    const int has_second = layer.second.codes != NULL, is_normed = next && layer.norm_weight;
    const int rectifies = next && !is_normed;
    const int64_t out_dim = has_second ? layer.second.num_outputs : dim;
    for (int64_t r = 0; r < lines; r++) {
        const int64_t first = from.indptr[row + r], count = from.indptr[row + r + 1] - first;
        if (from.tiled) /* what lies past the last column has step 0 */
            memcpy(space.sums, from.tiled + r * dim, (size_t)dim * 4);
        else if (from.bits < 8)
            LEVEL(sum_packed)(from.indices + first, count, (const uint8_t *)from.rows, from.row_bytes, from.bits,
                              from.num_ahead - first, space.sums);
        else
            LEVEL(gather_row)(from.indices + first, count, from.rows, from.row_bytes, from.num_ahead - first, used,
                              space.sums);
        const uint8_t *codes_of_row = near + r * from.row_bytes;
        if (layer.adds_near) codes_of_row = LEVEL(near_codes)(codes_of_row, from.row_bytes, from.bits, used, space.line);
        const float row_step = layer.rows.step[entry_of(&layer.rows, m->in_degree, row + r)];
        LEVEL(scale_sums)(layer, row + r, row_step, codes_of_row, own + r * own_width, space.sums, used,
                          has_second || rectifies, space.rows + r * space.row_stride, is_nan);
    }
    if (has_second) LEVEL(map_again)(layer, m->in_degree, row, lines, rectifies, space, is_nan);
    for (int64_t r = 0; r < lines; r++) {
        float *values = space.rows + r * space.row_stride;
        if (is_normed) LEVEL(normalize)(layer, out_dim, values, is_nan);
        if (kept) memcpy(kept + (row + r) * out_dim, values, (size_t)out_dim * 4);
        if (next)
            LEVEL(store_codes_of)(values, out_dim, next->rows, entry_of(&next->rows, m->in_degree, row + r),
                                  codes + r * code_stride);
    }
}

/* Where values of convolution l go. */
INLINE float *LEVEL(kept_values)(const layer_stack *m, int64_t l, float *logits, float *hidden) {
    return l + 1 == m->num_layers ? logits : l + 2 == m->num_layers ? hidden : NULL;
}

/* Codes of some rows that the first convolution reads, into space.block. */
INLINE void LEVEL(expand_block)(const layer_stack *m, int64_t row, int64_t lines, const batch_space space) {
    const int64_t dim = m->layers[0].map.dim, stride = padded_to(dim, CODE_PADDING);
    for (int64_t r = 0; r < lines; r++) LEVEL(expand_row)(&m->rows, row + r, dim, space.block + r * stride);
}

/* Convolution l of a batch. */
static int LEVEL(convolve_batch)(const batch_tiles *a, const layer_stack *m, int64_t l, int64_t b,
                                 const batch_space *given, float *logits, float *hidden) {
    const integer_layer layer = m->layers[l];
    const batch_space space = *given;
    const int64_t begin = a->row_begin[b], num_rows = a->row_begin[b + 1] - begin, dim = layer.map.num_outputs;
    const int64_t width = padded_to(dim, PADDING), own_width = layer.own.codes ? padded_to(dim, PANEL_PADDING) : 0;
    const int64_t stride = padded_to(layer.map.dim, CODE_PADDING);
    const int64_t out_dim = layer.second.codes ? layer.second.num_outputs : dim;
    const int64_t next_stride = padded_to(out_dim, CODE_PADDING);
    const int by_tiles = layer.takes_tiles[b];
    vector_i32 is_nan = {0};
    for (int64_t i = 0; i < num_rows; i += BLOCK_ROWS_HERE) {
        const int64_t lines = least(num_rows - i, BLOCK_ROWS_HERE);
        if (l == 0) LEVEL(expand_block)(m, begin + i, lines, space);
        LEVEL(map_block)(layer, m->in_degree, begin + i, lines, l ? space.codes[l % 2] + i * stride : space.block, stride, space,
                         space.mapped + i * width, space.own + i * own_width, &is_nan);
    }
    if (by_tiles && LEVEL(sum_tiles)(a, &m->layers[l], b, given)) return LAYERS_SHORT;
    neighbor_rows from = {.indptr = a->indptr, .indices = m->indices, .row_bytes = width, .bits = 8,
                          .rows = (uintptr_t)space.mapped - (uintptr_t)(begin * width)};
    for (int64_t i = 0; i < num_rows; i += BLOCK_ROWS_HERE) {
        from.tiled = by_tiles ? space.tiled + i * dim : NULL;
        LEVEL(convolve_block)(m, l, from, begin + i, least(num_rows - i, BLOCK_ROWS_HERE), space.mapped + i * width,
                              space.own + i * own_width, space, LEVEL(kept_values)(m, l, logits, hidden),
                              space.codes[(l + 1) % 2] + i * next_stride, next_stride, &is_nan);
    }
    return LEVEL(has_nan)(is_nan);
}

static int LEVEL(forward_batch)(const batch_tiles *a, const layer_stack *m, int64_t b, const batch_space *space,
                                float *logits, float *hidden) {
    int faults = LAYERS_FINE;
    for (int64_t l = 0; l < m->num_layers; l++) faults |= LEVEL(convolve_batch)(a, m, l, b, space, logits, hidden);
    return faults;
}

/* Codes of some rows that convolution l reads, a byte each, in space.block. */
INLINE void LEVEL(read_codes)(const layer_stack *m, const whole_graph *g, int64_t l, int64_t row, int64_t lines,
                              const batch_space space) {
    const integer_layer layer = m->layers[l];
    const int64_t stride = padded_to(layer.map.dim, CODE_PADDING);
    if (l == 0)
        LEVEL(expand_block)(m, row, lines, space);
    else
        for (int64_t r = 0; r < lines; r++)
            LEVEL(unpack_row)(g->codes + (row + r) * g->code_stride, layer.code_bytes, layer.code_bits,
                              space.block + r * stride);
}

/* Pack the codes in space.block into the graph's codes, for a convolution after the first. */
INLINE void LEVEL(write_codes)(const layer_stack *m, const whole_graph *g, int64_t l, int64_t row, int64_t lines,
                               const batch_space space) {
    const integer_layer layer = m->layers[l];
    const int64_t stride = padded_to(layer.map.dim, CODE_PADDING);
    for (int64_t r = 0; r < lines; r++)
        LEVEL(pack_row)(space.block + r * stride, layer.code_bytes, layer.code_bits,
                        g->codes + (row + r) * g->code_stride);
}

/* Some rows of a whole graph: convolution l, -1 for none, and then the map of the next one. */
static int LEVEL(forward_rows)(const layer_stack *m, const whole_graph *g, int64_t l, int64_t row, int64_t lines,
                               const batch_space *given, float *logits, float *hidden) {
    const batch_space space = *given;
    vector_i32 is_nan = {0};
    if (l >= 0) {
        const integer_layer layer = m->layers[l];
        const int64_t out_dim = layer.second.codes ? layer.second.num_outputs : layer.map.num_outputs;
        uint8_t *mapped = g->mapped[l % 2];
        const neighbor_rows from = {.indptr = g->indptr, .indices = m->indices, .rows = (uintptr_t)mapped,
                                    .row_bytes = layer.mapped_bytes, .num_ahead = g->indptr[g->num_rows],
                                    .bits = layer.stored_bits};
        if (layer.own.codes) {
            LEVEL(read_codes)(m, g, l, row, lines, space);
            LEVEL(multiply_codes)(&layer.own_panels, layer.own.dim, space.block, padded_to(layer.own.dim, CODE_PADDING),
                                  lines, &space, space.own);
        }
        LEVEL(convolve_block)(m, l, from, row, lines, mapped + row * from.row_bytes, space.own, space,
                              LEVEL(kept_values)(m, l, logits, hidden), space.block, padded_to(out_dim, CODE_PADDING),
                              &is_nan);
        if (l + 1 < m->num_layers && g->codes) LEVEL(write_codes)(m, g, l + 1, row, lines, space);
    } else {
        LEVEL(expand_block)(m, row, lines, space);
    }
    if (l + 1 < m->num_layers) {
        const integer_layer next = m->layers[l + 1];
        LEVEL(map_block)(next, m->in_degree, row, lines, space.block, padded_to(next.map.dim, CODE_PADDING), space,
                         g->mapped[(l + 1) % 2] + row * next.mapped_bytes, space.own, &is_nan);
    }
    return LEVEL(has_nan)(is_nan);
}

static int64_t LEVEL(block_rows)(void) { return BLOCK_ROWS_HERE; }
