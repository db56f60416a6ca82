#include "vector.h"
#include "bit_planes_body.h"
#include "count_ones_body.h"

/* A panel is LANES columns of the right matrix, with four vectors per step of 128 bits. Vector v has the bits of the
 * columns v, v + 4, v + 8 .. (LANES / 4 of them), so that the sums of a row come out in the order of the columns. */
#undef ROWS
#if LEVEL_LANES == 16
#define ROWS 4
#else
#define ROWS 2
#endif

/* sum + 2^plane * ones of the vector. */
INLINE vector_u32 LEVEL(add_ones)(vector_u32 sum, vector_u32 bits, int plane, int is_weighted) {
    if (!is_weighted) return sum + LEVEL(count_ones)(bits);
#ifdef LEVEL_COUNTS_BITS
    return (vector_u32)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi8((char)(1 << plane)),
                                           _mm512_popcnt_epi8((__m512i)bits));
#else
    return sum + (LEVEL(count_ones)(bits) << plane);
#endif
}

INLINE vector_u32 LEVEL(load_step)(const uint32_t *row) {
#if LEVEL_LANES == 16
    return (vector_u32)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)row));
#elif LEVEL_LANES == 8
    return (vector_u32)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)row));
#else
    vector_u32 words;
    memcpy(&words, row, sizeof words);
    return words;
#endif
}

/* Loads a whole register: GCC would copy it in parts, and the load of the whole would wait until these are written. */
INLINE vector_u32 LEVEL(load_columns_of_bits)(const uint32_t *panel) {
#if LEVEL_LANES == 16
    return (vector_u32)_mm512_loadu_si512(panel);
#elif LEVEL_LANES == 8
    return (vector_u32)_mm256_lddqu_si256((const __m256i *)panel);
#else
    return LEVEL(load_step)(panel);
#endif
}

/* ROWS rows times one panel, one step: four loads of the panel serve all rows. */
INLINE void LEVEL(add_step)(vector_u32 sum[ROWS][4], const uint32_t *rows, int64_t row_words, const uint32_t *panel,
                            int plane, int is_weighted) {
    vector_u32 columns[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) columns[v] = LEVEL(load_columns_of_bits)(panel + v * LANES);
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
        const vector_u32 row = LEVEL(load_step)(rows + r * row_words);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) sum[r][v] = LEVEL(add_ones)(sum[r][v], row & columns[v], plane, is_weighted);
    }
}

/* Sums of a row's four vectors over each 128 bits: LANES columns in order. */
INLINE vector_u32 LEVEL(join_sums)(const vector_u32 *sum) {
#if LEVEL_LANES == 16
    __m512i pair[2];
    for (int i = 0; i < 2; i++) {
        const __m512i even = (__m512i)sum[2 * i], odd = (__m512i)sum[2 * i + 1];
        pair[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(even, odd), _mm512_unpackhi_epi32(even, odd));
    }
    return (vector_u32)_mm512_add_epi32(_mm512_unpacklo_epi64(pair[0], pair[1]), _mm512_unpackhi_epi64(pair[0], pair[1]));
#elif LEVEL_LANES == 8
    __m256i pair[2];
    for (int i = 0; i < 2; i++) {
        const __m256i even = (__m256i)sum[2 * i], odd = (__m256i)sum[2 * i + 1];
        pair[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(even, odd), _mm256_unpackhi_epi32(even, odd));
    }
    return (vector_u32)_mm256_add_epi32(_mm256_unpacklo_epi64(pair[0], pair[1]), _mm256_unpackhi_epi64(pair[0], pair[1]));
#else
    vector_u32 joined;
    for (int v = 0; v < 4; v++) joined[v] = sum[v][0] + sum[v][1] + sum[v][2] + sum[v][3];
    return joined;
#endif
}

/* ROWS rows of the left matrix times one panel, as sums of LANES columns. The pairs of planes of one weight 2^d are
 * summed together and doubled on the way to the next (Horner); a reused tile meets all planes at once instead. */
INLINE void LEVEL(multiply_panel)(const left_rows *a, const right_panels *b, const uint32_t *panel, int32_t *out,
                                  int kind) {
    vector_u32 sum[ROWS][4] = {{{0}}};
    if (kind == REUSED_TILES) {
        for (int64_t e = 0; e < a->num_steps; e++)
            for (int j = 0; j < b->num_planes; j++)
                LEVEL(add_step)(sum, a->words + a->tile[e] * TILE_WORDS, STEP_WORDS,
                                panel + a->step[e] * b->step_words + j * b->plane_words, j, 1);
    } else {
        for (int d = a->num_planes + b->num_planes - 2; d >= 0; d--) {
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < 4; v++) sum[r][v] <<= 1;
            for (int i = d < b->num_planes ? 0 : d - b->num_planes + 1; i < a->num_planes && i <= d; i++) {
                const uint32_t *rows = a->words + i * a->plane_words, *columns = panel + (d - i) * b->plane_words;
                for (int64_t e = 0; e < a->num_steps; e++) {
                    if (kind == WHOLE_LINES)
                        LEVEL(add_step)(sum, rows + e * STEP_WORDS, a->row_words, columns + e * b->step_words, 0, 0);
                    else
                        LEVEL(add_step)(sum, rows + a->tile[e] * TILE_WORDS, STEP_WORDS,
                                        columns + a->step[e] * b->step_words, 0, 0);
                }
            }
        }
    }
    for (int r = 0; r < ROWS; r++) {
        const vector_u32 joined = LEVEL(join_sums)(sum[r]);
        memcpy(out + r * CHUNK_COLUMNS, &joined, sizeof joined);
    }
}

/* Eight rows times one panel. */
static void LEVEL(multiply_tile_row)(const left_rows *all, const right_panels *b, const uint32_t *panel, int32_t *out) {
    left_rows a = *all;
    for (int r = 0; r < TILE_ROWS; r += ROWS) {
        a.words = all->words + r * a.row_words;
        if (!a.tile)
            LEVEL(multiply_panel)(&a, b, panel, out + r * CHUNK_COLUMNS, WHOLE_LINES);
        else if (!a.reuses_tiles)
            LEVEL(multiply_panel)(&a, b, panel, out + r * CHUNK_COLUMNS, LISTED_TILES);
        else
            LEVEL(multiply_panel)(&a, b, panel, out + r * CHUNK_COLUMNS, REUSED_TILES);
    }
}

/* The panel of the lines first .. first + LANES - 1; those past the last one are zero. */
static void LEVEL(fill_panel)(const bit_columns *lines, int64_t num_steps, int64_t first, const right_panels *b,
                              uint32_t *panel) {
    const int64_t line_words = num_steps * STEP_WORDS;
    for (int j = 0; j < b->num_planes; j++)
        for (int c = 0; c < LANES; c++) {
            const int64_t place = (c % 4 * (LANES / 4) + c / 4) * STEP_WORDS, line = first + c;
            uint32_t *out = panel + j * b->plane_words + place;
            const uint32_t *in = lines->words + (j * lines->num_lines + line) * line_words;
            for (int64_t e = 0; e < num_steps; e++) {
                if (line < lines->num_lines)
                    memcpy(out + e * b->step_words, in + e * STEP_WORDS, STEP_WORDS * 4);
                else
                    memset(out + e * b->step_words, 0, STEP_WORDS * 4);
            }
        }
}

/* Values of one row's columns first .. first + n - 1 from their sums. */
INLINE void LEVEL(values_of)(const product_out *out, int64_t row, int64_t first, int64_t n, const int32_t *sums,
                             float *values) {
    const float row_step = out->row_step[row], row_zero = out->row_zero[row], row_sum = out->row_sum[row];
    const float *step = out->column_step + first, *zero = out->column_zero + first, *sum = out->column_sum + first;
    const float length = out->length;
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        values[j] = (row_step * step[j]) * (float)sums[j]
                    + ((row_zero * sum[j] + row_sum * zero[j]) + length * (row_zero * zero[j]));
    if (out->gain)
#pragma omp simd
        for (int64_t j = 0; j < n; j++) values[j] *= out->gain_is_by_row ? out->gain[row] : out->gain[first + j];
    if (out->bias)
#pragma omp simd
        for (int64_t j = 0; j < n; j++) values[j] += out->bias_is_by_row ? out->bias[row] : out->bias[first + j];
    if (out->has_relu)
#pragma omp simd
        for (int64_t j = 0; j < n; j++) values[j] = values[j] > 0.0f ? values[j] : 0.0f;
}

/* Columns first .. first + n - 1 of a row, as values or as planes of codes. first is a multiple of 128. */
static void LEVEL(finish_row)(const product_out *out, int64_t row, int64_t first, int64_t n, const int32_t *sums) {
    if (out->kind == OUT_SUMS) {
        memcpy((int32_t *)out->out + row * out->num_columns + first, sums, (size_t)n * 4);
        return;
    }
    float values[CHUNK_COLUMNS];
    LEVEL(values_of)(out, row, first, n, sums, values);
    if (out->kind == OUT_VALUES) {
        memcpy((float *)out->out + row * out->num_columns + first, values, (size_t)n * 4);
        return;
    }
    uint8_t codes[CHUNK_COLUMNS] = {0};
    const float largest = (float)((1 << out->bit_width) - 1);
#pragma omp simd
    for (int64_t j = 0; j < n; j++) codes[j] = LEVEL(code_of)(values[j], out->low, out->step, out->offset, largest);
    for (int p = 0; p < out->bit_width; p++) {
        uint32_t *words = (uint32_t *)out->out + (p * out->num_padded + row) * out->line_words + first / 32;
        for (int64_t w = 0; w * 32 < n; w++) words[w] = LEVEL(plane_word)(codes + 32 * w, p);
    }
}
