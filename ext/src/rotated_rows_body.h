/* Rotated rows <-> bytes of a message, compiled once per SIMD level. Include it after rotation_body.h and the bodies of
 * affine rows. As many rows as the first cache holds are rotated, summed and coded together. */

/* Columns j .. j+LANES-1 of a row of any storage times a factor, into y. */
INLINE void LEVEL(load_scaled)(const void *row, int64_t dim, int storage, float factor, float *y) {
    int64_t j = 0;
    for (; j + LANES <= dim; j += LANES) LEVEL(store)(y, j, STORAGE_F32, LEVEL(load)(row, j, storage) * factor);
    if (j < dim) LEVEL(store)(y, j, STORAGE_F32, LEVEL(load_first)(row, j, dim - j, storage) * factor);
}

/* Zeros behind the columns of a row, up to a whole group. */
INLINE void LEVEL(pad_row)(float *y, int64_t dim) {
    for (int64_t j = dim; j % GROUP; j++) y[j] = 0.0f;
}

INLINE float LEVEL(energy_of)(const float *y, int64_t dim) {
    vector_f32 sum[SIXTEEN] = {{0}};
    for (int64_t j = 0; j < dim; j += 16)
#pragma GCC unroll 4
        for (int i = 0; i < SIXTEEN; i++) {
            const vector_f32 x = LEVEL(load_f32)(y + j + i * LANES);
            sum[i] += x * x;
        }
    return LEVEL(sum_sixteen)(sum);
}

/* Codes from 0 to 2^b - 1 of LANES columns, as floats; b is a constant. */
INLINE vector_f32 LEVEL(rotated_codes)(vector_f32 x, int b, float inverse) {
    if (b == 1) return (vector_f32)((vector_u32)(x >= 0.0f) & 0x3f800000);
    const vector_f32 code = x * inverse + (float)(1 << (b - 1));
    const vector_f32 most = LEVEL(broadcast)((float)((1 << b) - 1));
    const vector_f32 within = LEVEL(smaller)(LEVEL(larger)(code, LEVEL(broadcast)(0.0f)), most);
#if LEVEL_LANES == 16
    return (vector_f32)_mm512_cvtepi32_ps(_mm512_cvttps_epi32((__m512)within));
#elif LEVEL_LANES == 8
    return (vector_f32)_mm256_cvtepi32_ps(_mm256_cvttps_epi32((__m256)within));
#else
    return __builtin_convertvector(__builtin_convertvector(within, vector_i32), vector_f32);
#endif
}

/* Sums over the columns of a row: of column times centered code, and of squared centered codes. */
typedef struct {
    vector_f32 product[SIXTEEN], square[SIXTEEN];
} LEVEL(sums_of_codes);
#undef code_sums
#define code_sums LEVEL(sums_of_codes)

/* Codes of the columns j .. j+GROUP-1, 0 behind the end of the row; b and is_squared are constants. */
INLINE void LEVEL(code_group)(const float *y, int64_t j, int64_t dim, int b, float inverse, int is_squared,
                              code_sums *sums, vector_f32 code[4]) {
    const float middle = 0.5f * (float)((1 << b) - 1);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const int64_t first = j + v * LANES;
        const vector_f32 x = LEVEL(load_f32)(y + first);
        code[v] = LEVEL(rotated_codes)(x, b, inverse);
        vector_f32 q = code[v] - middle;
        if (first + LANES > dim) {
            const int64_t num_left = first < dim ? dim - first : 0;
            const vector_u32 is_inside = (vector_u32)(LEVEL(lane_numbers)() < (uint32_t)num_left);
            code[v] = (vector_f32)(is_inside & (vector_u32)code[v]);
            q = (vector_f32)(is_inside & (vector_u32)q);
        }
        sums->product[v % SIXTEEN] += x * q;
        if (is_squared) sums->square[v % SIXTEEN] += q * q;
    }
}

/* b and rounding are constants. Returns the step in units of the rotated row. */
INLINE float LEVEL(code_row)(const float *y, int64_t dim, int b, int rounding, float energy, float inverse,
                             uint8_t *payload) {
    const int is_nearest = rounding == ROUND_NEAREST;
    code_sums sums = {0};
    vector_f32 code[4];
    int64_t j = 0;
    for (; j + GROUP <= dim; j += GROUP) {
        LEVEL(code_group)(y, j, j + GROUP, b, inverse, is_nearest, &sums, code);
        LEVEL(pack_group)(code, b, payload + j * b / 8);
    }
    if (j < dim) {
        uint8_t last[GROUP];
        LEVEL(code_group)(y, j, dim, b, inverse, is_nearest, &sums, code);
        LEVEL(pack_group)(code, b, last);
        memcpy(payload + j * b / 8, last, (size_t)((dim - j) * b + 7) / 8);
    }
    const float product = LEVEL(sum_sixteen)(sums.product);
    return is_nearest ? product / LEVEL(sum_sixteen)(sums.square) : energy / product;
}

INLINE float LEVEL(code_rounded_row)(const float *y, int64_t dim, int b, int rounding, float energy, float inverse,
                                     uint8_t *payload) {
    switch (b) {
    case 1: return LEVEL(code_row)(y, dim, 1, rounding, energy, inverse, payload);
    case 2: return LEVEL(code_row)(y, dim, 2, rounding, energy, inverse, payload);
    case 4: return LEVEL(code_row)(y, dim, 4, rounding, energy, inverse, payload);
    default: return LEVEL(code_row)(y, dim, 8, rounding, energy, inverse, payload);
    }
}

/* Rotate, sum and code rows that lie in memory in their units. Each stage takes all rows before the next stage begins:
 * the rows' chains of operations overlap, and each pass finds the columns of the pass before in the cache. */
static void LEVEL(send_rotated)(const rotated_row *rows, int num_rows, const message_rows *m, const rotation_plan *plan,
                                int rounding, uint8_t *message) {
    const int64_t dim = m->dim;
    float energy[BLOCK_ROWS], inverse[BLOCK_ROWS];
    for (int pass = 0; pass < plan->num_passes; pass++)
        for (int k = 0; k < num_rows; k++) LEVEL(rotate_pass)(rows[k].y, plan, pass, rows[k].signs, 0);
    for (int k = 0; k < num_rows; k++) {
        LEVEL(pad_row)(rows[k].y, dim);
        energy[k] = LEVEL(energy_of)(rows[k].y, dim);
        inverse[k] = inverse_step(energy[k], dim, m->bit_width[rows[k].i]);
    }
    for (int k = 0; k < num_rows; k++) {
        const int64_t i = rows[k].i;
        const int b = m->bit_width[i];
        uint8_t *payload = message + m->payload_offset[i];
        const float step = rounding == ROUND_NEAREST
            ? LEVEL(code_rounded_row)(rows[k].y, dim, b, ROUND_NEAREST, energy[k], inverse[k], payload)
            : LEVEL(code_rounded_row)(rows[k].y, dim, b, ROUND_STOCHASTIC, energy[k], inverse[k], payload);
        write_step(step * rows[k].unit, message + m->parameter_offset[i]);
    }
}

/* Put row i into memory in its own units, unless it is all zeros. Returns whether it can be coded; storage is a
 * constant. */
INLINE int LEVEL(gather_rotated)(const void *row, const message_rows *m, int storage, rotated_row *into,
                                 int *num_rows, uint8_t *message) {
    float low, high;
    LEVEL(range_of)(row, m->dim, storage, &low, &high);
    if (!(low >= -LARGEST_MAGNITUDE && high <= LARGEST_MAGNITUDE)) return 0;
    const float most = -low > high ? -low : high;
    if (most == 0.0f) {
        memset(message + m->payload_offset[into->i], 0, (size_t)(m->dim * m->bit_width[into->i] + 7) / 8);
        memset(message + m->parameter_offset[into->i], 0, 2);
        return 1;
    }
    into->unit = unit_of(most);
    LEVEL(load_scaled)(row, m->dim, storage, 1.0f / into->unit, into->y);
    (*num_rows)++;
    return 1;
}

/* The rows first .. end-1 of the message, at most BLOCK_ROWS. Returns the first row that can't be quantized, or end. */
INLINE int64_t LEVEL(quantize_rotated_stored)(const void *rows, const message_rows *m, int64_t first, int64_t end,
                                              int storage, const message_draws *draws, int rounding,
                                              uint8_t *message) {
    row_memory *memory = thread_memory();
    rotated_row together[BLOCK_ROWS] = {{0}};
    int num_rows = 0;
    LEVEL(fill_signs)(&draws->signs, &draws->plan, m->node_id + first, end - first, memory->signs);
    for (int64_t i = first; i < end; i++) {
        const void *row = row_of(rows, m, i);
        if (i + BLOCK_ROWS < m->num_rows) prefetch_row(rows, m, i + BLOCK_ROWS);
        if (m->bit_width[i] > 8) {
            LEVEL(quantize_wide_row)(row, m, i, storage, &draws->rounding, rounding, message + m->payload_offset[i]);
            continue;
        }
        together[num_rows] = rotated_row_of(memory, &draws->plan, i, i - first, num_rows);
        if (!LEVEL(gather_rotated)(row, m, storage, &together[num_rows], &num_rows, message)) return i;
        if (num_rows < draws->plan.num_together) continue;
        LEVEL(send_rotated)(together, num_rows, m, &draws->plan, rounding, message);
        num_rows = 0;
    }
    LEVEL(send_rotated)(together, num_rows, m, &draws->plan, rounding, message);
    return end;
}

static int64_t LEVEL(quantize_rotated)(const void *rows, const message_rows *m, int64_t first, int64_t end,
                                       const message_draws *draws, int rounding, uint8_t *message) {
    switch (m->storage) {
    case STORAGE_BF16:
        return LEVEL(quantize_rotated_stored)(rows, m, first, end, STORAGE_BF16, draws, rounding, message);
    case STORAGE_F16:
        return LEVEL(quantize_rotated_stored)(rows, m, first, end, STORAGE_F16, draws, rounding, message);
    default: return LEVEL(quantize_rotated_stored)(rows, m, first, end, STORAGE_F32, draws, rounding, message);
    }
}

/* (code - (2^b - 1) / 2) * step of a row's codes, into y; b is a constant. */
INLINE void LEVEL(decode_centered)(const uint8_t *payload, int b, float step, int64_t dim, float *y) {
    const affine_row centered = LEVEL(affine_row_of)(b, -0.5f * (float)((1 << b) - 1), 1.0f); /* exact */
    int64_t j = 0;
    for (; j + LANES <= dim; j += LANES)
        LEVEL(store)(y, j, STORAGE_F32, LEVEL(decode_vector)(payload, j, b, centered) * step);
    if (j == dim) return;
    uint8_t last[LANES] = {0};
    memcpy(last, payload + j * b / 8, (size_t)((dim * b + 7) / 8 - j * b / 8));
    LEVEL(store)(y, j, STORAGE_F32, LEVEL(decode_vector)(last, (j * b % 8) / b, b, centered) * step);
}

/* Read rows of codes into their memory and turn them back, stage by stage as `send_rotated` does. */
static void LEVEL(receive_rotated)(const uint8_t *message, const rotated_row *rows, int num_rows, const message_rows *m,
                                   const rotation_plan *plan) {
    for (int k = 0; k < num_rows; k++) {
        const int64_t i = rows[k].i;
        const uint8_t *payload = message + m->payload_offset[i];
        uint16_t bits;
        memcpy(&bits, message + m->parameter_offset[i], sizeof bits);
        const float step = bf16_value(bits);
        switch (m->bit_width[i]) {
        case 1: LEVEL(decode_centered)(payload, 1, step, plan->dim, rows[k].y); break;
        case 2: LEVEL(decode_centered)(payload, 2, step, plan->dim, rows[k].y); break;
        case 4: LEVEL(decode_centered)(payload, 4, step, plan->dim, rows[k].y); break;
        default: LEVEL(decode_centered)(payload, 8, step, plan->dim, rows[k].y);
        }
    }
    for (int pass = plan->num_passes - 1; pass >= 0; pass--)
        for (int k = 0; k < num_rows; k++) LEVEL(rotate_pass)(rows[k].y, plan, pass, rows[k].signs, 1);
}

/* Write rows from their memory to the table; storage is a constant. */
INLINE void LEVEL(scatter_rotated)(const rotated_row *together, int num_rows, const message_rows *m, int storage,
                                   int accumulate, void *rows) {
    for (int k = 0; k < num_rows; k++)
        LEVEL(convert_columns)(together[k].y, STORAGE_F32, m->dim, (char *)row_of(rows, m, together[k].i), storage,
                               accumulate);
}

INLINE void LEVEL(dequantize_rotated_stored)(const uint8_t *message, const message_rows *m, int64_t first, int64_t end,
                                             int storage, const message_draws *draws, int accumulate, void *rows) {
    const rotation_plan *plan = &draws->plan;
    row_memory *memory = thread_memory();
    rotated_row together[BLOCK_ROWS] = {{0}};
    int num_rows = 0;
    LEVEL(fill_signs)(&draws->signs, plan, m->node_id + first, end - first, memory->signs);
    for (int64_t i = first; i < end; i++) {
        if (m->bit_width[i] > 8) {
            LEVEL(dequantize_wide_row)(message + m->payload_offset[i], m->bit_width[i], m->dim, storage, accumulate,
                                       (char *)row_of(rows, m, i));
            continue;
        }
        together[num_rows] = rotated_row_of(memory, plan, i, i - first, num_rows);
        if (++num_rows < plan->num_together) continue;
        LEVEL(receive_rotated)(message, together, num_rows, m, plan);
        LEVEL(scatter_rotated)(together, num_rows, m, storage, accumulate, rows);
        num_rows = 0;
    }
    LEVEL(receive_rotated)(message, together, num_rows, m, plan);
    LEVEL(scatter_rotated)(together, num_rows, m, storage, accumulate, rows);
}

static void LEVEL(dequantize_rotated)(const uint8_t *message, const message_rows *m, int64_t first, int64_t end,
                                      const message_draws *draws, int accumulate, void *rows) {
    switch (m->storage) {
    case STORAGE_BF16:
        LEVEL(dequantize_rotated_stored)(message, m, first, end, STORAGE_BF16, draws, accumulate, rows);
        break;
    case STORAGE_F16:
        LEVEL(dequantize_rotated_stored)(message, m, first, end, STORAGE_F16, draws, accumulate, rows);
        break;
    default: LEVEL(dequantize_rotated_stored)(message, m, first, end, STORAGE_F32, draws, accumulate, rows);
    }
}
