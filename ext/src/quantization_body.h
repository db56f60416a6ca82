/* Kernel body, compiled once per SIMD level by quantization.c. */
#include "vector.h"
#include "philox_body.h"
#include "packed_rows_body.h"
#include "row_range_body.h"
#include "pack_codes_body.h"
#include "rotation_body.h"

/* Codes with their fractions, of the columns j .. j+GROUP-1 of a row; rounding is a constant. */
INLINE void LEVEL(scale_group)(const void *row, int64_t j, int64_t dim, int storage, row_scale scale, int rounding,
                               const vector_u32 *draws, vector_f32 code[4]) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const vector_f32 noise = rounding == ROUND_NEAREST ? LEVEL(broadcast)(0.5f)
            : (vector_f32)draws[v] - 0x1.fffffep6f; /* (draw + 1/2) / 2^16, exactly */
        const vector_f32 x = LEVEL(load_padded)(row, j + v * LANES, dim, storage, LEVEL(broadcast)(scale.zero_point));
        const vector_f32 distance = x - scale.zero_point;
        code[v] = (scale.is_tiny ? distance / scale.step : distance * scale.inverse) + noise;
        if (rounding == ROUND_NEAREST) code[v] = LEVEL(larger)(code[v], LEVEL(broadcast)(0.0f)); /* may be below code 0 */
    }
}

/* b, storage and rounding are constants. */
INLINE void LEVEL(quantize_affine_row)(const void *row, int64_t dim, int b, int storage, row_scale scale,
                                       int64_t node_id, const philox_schedule *schedule, int rounding,
                                       uint8_t *payload) {
    vector_u32 draws[DRAWN_COLUMNS / LANES];
    vector_f32 code[4];
    for (int64_t start = 0; start < dim; start += DRAWN_COLUMNS) {
        const int64_t end = start + DRAWN_COLUMNS < dim ? start + DRAWN_COLUMNS : dim, whole = end / GROUP * GROUP;
        if (rounding == ROUND_STOCHASTIC) /* as floats: 128 + draw / 2^16 */
            LEVEL(fill_draws)(schedule, node_id, start, end - start, 0x4300, draws);
        for (int64_t j = start; j < whole; j += GROUP) {
            LEVEL(scale_group)(row, j, whole, storage, scale, rounding, draws + (j - start) / LANES, code);
            LEVEL(pack_group)(code, b, payload + j * b / 8);
        }
        if (whole == end) continue;
        uint8_t last[GROUP];
        LEVEL(scale_group)(row, whole, end, storage, scale, rounding, draws + (whole - start) / LANES, code);
        LEVEL(pack_group)(code, b, last);
        memcpy(payload + whole * b / 8, last, (size_t)((end - whole) * b + 7) / 8);
    }
}

/* float32 to bfloat16: adding the draw below the cut carries with probability equal to the fraction dropped. Infinity
 * and NaN have no fraction to round, and the largest finite values are kept from carrying into infinity. */
INLINE void LEVEL(round_row)(const float *row, int64_t dim, int64_t node_id, const philox_schedule *schedule,
                             uint8_t *payload) {
    vector_u32 draws[DRAWN_COLUMNS / LANES];
    for (int64_t start = 0; start < dim; start += DRAWN_COLUMNS) {
        const int64_t end = start + DRAWN_COLUMNS < dim ? start + DRAWN_COLUMNS : dim;
        LEVEL(fill_draws)(schedule, node_id, start, end - start, 0, draws);
        for (int64_t j = start; j < end; j += LANES) {
            const vector_u32 bits = (vector_u32)LEVEL(load_columns)(row, j, end, STORAGE_F32);
            const vector_u32 has_fraction = (vector_u32)((bits & 0x7fffffff) < 0x7f7f0000);
            const vector_u16 half = LEVEL(narrow)((bits + (draws[(j - start) / LANES] & has_fraction)) >> 16);
            if (j + LANES <= end)
                memcpy(payload + 2 * j, &half, sizeof half);
            else
                memcpy(payload + 2 * j, &half, 2 * (size_t)(end - j));
        }
    }
}

/* A row of 16 or 32 bits. */
INLINE void LEVEL(quantize_wide_row)(const void *row, const message_rows *m, int64_t i, int storage,
                                     const philox_schedule *schedule, int rounding, uint8_t *payload) {
    const int64_t dim = m->dim, node_id = m->node_id[i];
    const int b = m->bit_width[i];
    if (wire_storage(b, storage) == storage)
        memcpy(payload, row, (size_t)(dim * storage_bytes(storage)));
    else if (b == 16 && rounding == ROUND_NEAREST)
        LEVEL(convert_columns)(row, storage, dim, payload, STORAGE_BF16, 0);
    else if (b == 16)
        LEVEL(round_row)(row, dim, node_id, schedule, payload);
    else
        LEVEL(convert_columns)(row, storage, dim, payload, STORAGE_F32, 0);
}

INLINE void LEVEL(quantize_row)(const void *row, const message_rows *m, int64_t i, int storage, row_scale scale,
                                const philox_schedule *schedule, int rounding, uint8_t *payload) {
    const int64_t dim = m->dim, node_id = m->node_id[i];
    const int b = m->bit_width[i];
    switch (b) {
    case 1: LEVEL(quantize_affine_row)(row, dim, 1, storage, scale, node_id, schedule, rounding, payload); return;
    case 2: LEVEL(quantize_affine_row)(row, dim, 2, storage, scale, node_id, schedule, rounding, payload); return;
    case 4: LEVEL(quantize_affine_row)(row, dim, 4, storage, scale, node_id, schedule, rounding, payload); return;
    case 8: LEVEL(quantize_affine_row)(row, dim, 8, storage, scale, node_id, schedule, rounding, payload); return;
    }
    LEVEL(quantize_wide_row)(row, m, i, storage, schedule, rounding, payload);
}

/* Zero point and step of row i, given its range. */
INLINE row_scale LEVEL(affine_scale)(const void *row, const message_rows *m, int64_t i, int storage, float low,
                                     float high, int rounding, uint8_t *parameters) {
    const int b = m->bit_width[i];
    if (rounding == ROUND_STOCHASTIC) return scale_of_range(low, high, b, parameters);
    if (b == 8) return scale_of_range(low, high + 0.0f, b, parameters); /* the step of a row of -0 is +0 */
    const row_summary summary = LEVEL(summary_of)(row, m->dim, storage, low, high);
    if (b == 1) return LEVEL(centroid_scale)(row, m->dim, storage, summary, parameters);
    return LEVEL(fitted_scale)(row, m->dim, storage, b, summary, parameters);
}

/* The rows first .. end-1 of the message, at most BLOCK_ROWS. Ranges come first: each ends in a chain of operations
 * that wait for one another, and the chains of several rows overlap. Returns the first row that can't be quantized,
 * or end. */
INLINE int64_t LEVEL(quantize_stored)(const void *rows, const message_rows *m, int64_t first, int64_t end, int storage,
                                      const philox_schedule *schedule, int rounding, uint8_t *message) {
    row_scale scale[BLOCK_ROWS] = {{0}}; /* rows of 16 and 32 bits have none */
    for (int64_t i = first; i < end; i++) {
        float low, high;
        if (m->bit_width[i] > 8) continue;
        LEVEL(range_of)(row_of(rows, m, i), m->dim, storage, &low, &high);
        if (!(low >= -LARGEST_MAGNITUDE && high <= LARGEST_MAGNITUDE)) return i;
        scale[i - first] = LEVEL(affine_scale)(row_of(rows, m, i), m, i, storage, low, high, rounding,
                                               message + m->parameter_offset[i]);
    }
    for (int64_t i = first; i < end; i++) {
        if (i + BLOCK_ROWS < m->num_rows) prefetch_row(rows, m, i + BLOCK_ROWS);
        LEVEL(quantize_row)(row_of(rows, m, i), m, i, storage, scale[i - first], schedule, rounding,
                            message + m->payload_offset[i]);
    }
    return end;
}

/* One function per storage and rounding, since a single one for all would take longer to compile. */
#define QUANTIZE_AS(name, storage, rounding) \
    static __attribute__((noinline)) int64_t LEVEL(name)(const void *rows, const message_rows *m, int64_t first, \
                                                         int64_t end, const philox_schedule *schedule, \
                                                         uint8_t *message) { \
        return LEVEL(quantize_stored)(rows, m, first, end, storage, schedule, rounding, message); \
    }
QUANTIZE_AS(quantize_f32_nearest, STORAGE_F32, ROUND_NEAREST)
QUANTIZE_AS(quantize_bf16_nearest, STORAGE_BF16, ROUND_NEAREST)
QUANTIZE_AS(quantize_f16_nearest, STORAGE_F16, ROUND_NEAREST)
QUANTIZE_AS(quantize_f32_stochastic, STORAGE_F32, ROUND_STOCHASTIC)
QUANTIZE_AS(quantize_bf16_stochastic, STORAGE_BF16, ROUND_STOCHASTIC)
QUANTIZE_AS(quantize_f16_stochastic, STORAGE_F16, ROUND_STOCHASTIC)
#undef QUANTIZE_AS

static int64_t LEVEL(quantize_affine)(const void *rows, const message_rows *m, int64_t first, int64_t end,
                                      const message_draws *draws, int rounding, uint8_t *message) {
    const philox_schedule *schedule = &draws->rounding;
    if (rounding == ROUND_NEAREST) switch (m->storage) {
        case STORAGE_BF16: return LEVEL(quantize_bf16_nearest)(rows, m, first, end, schedule, message);
        case STORAGE_F16: return LEVEL(quantize_f16_nearest)(rows, m, first, end, schedule, message);
        default: return LEVEL(quantize_f32_nearest)(rows, m, first, end, schedule, message);
        }
    switch (m->storage) {
    case STORAGE_BF16: return LEVEL(quantize_bf16_stochastic)(rows, m, first, end, schedule, message);
    case STORAGE_F16: return LEVEL(quantize_f16_stochastic)(rows, m, first, end, schedule, message);
    default: return LEVEL(quantize_f32_stochastic)(rows, m, first, end, schedule, message);
    }
}

/* A row of 16 or 32 bits. */
INLINE void LEVEL(dequantize_wide_row)(const uint8_t *payload, int b, int64_t dim, int storage, int accumulate,
                                       void *row) {
    if (wire_storage(b, storage) == storage && !accumulate)
        memcpy(row, payload, (size_t)(dim * storage_bytes(storage)));
    else if (b == 32)
        LEVEL(convert_columns)(payload, STORAGE_F32, dim, row, storage, accumulate);
    else
        LEVEL(convert_columns)(payload, wire_storage(16, storage), dim, row, storage, accumulate);
}

/* storage is a constant. */
INLINE void LEVEL(dequantize_row)(const uint8_t *payload, int b, const uint8_t *parameters, int64_t dim, int storage,
                                  int accumulate, void *row) {
    if (b > 8) {
        LEVEL(dequantize_wide_row)(payload, b, dim, storage, accumulate, row);
        return;
    }
    uint16_t bits[2];
    memcpy(bits, parameters, sizeof bits);
    const float zero_point = bf16_value(bits[0]), step = bf16_value(bits[1]);
    if (storage == STORAGE_F32 && !accumulate) {
        LEVEL(decode_columns)(payload, b, zero_point, step, 0, dim, row);
        return;
    }
    switch (b) {
    case 1: LEVEL(decode_codes)(payload, 1, zero_point, step, dim, row, storage, accumulate); break;
    case 2: LEVEL(decode_codes)(payload, 2, zero_point, step, dim, row, storage, accumulate); break;
    case 4: LEVEL(decode_codes)(payload, 4, zero_point, step, dim, row, storage, accumulate); break;
    default: LEVEL(decode_codes)(payload, 8, zero_point, step, dim, row, storage, accumulate);
    }
}

INLINE void LEVEL(dequantize_one)(const uint8_t *message, const message_rows *m, int64_t i, int accumulate,
                                  void *rows) {
    char *row = (char *)row_of(rows, m, i);
    const uint8_t *payload = message + m->payload_offset[i], *parameters = message + m->parameter_offset[i];
    switch (m->storage) {
    case STORAGE_BF16:
        LEVEL(dequantize_row)(payload, m->bit_width[i], parameters, m->dim, STORAGE_BF16, accumulate, row);
        break;
    case STORAGE_F16:
        LEVEL(dequantize_row)(payload, m->bit_width[i], parameters, m->dim, STORAGE_F16, accumulate, row);
        break;
    default:
        LEVEL(dequantize_row)(payload, m->bit_width[i], parameters, m->dim, STORAGE_F32, accumulate, row);
    }
}

static void LEVEL(dequantize_affine)(const uint8_t *message, const message_rows *m, int64_t first, int64_t end,
                                     const message_draws *draws, int accumulate, void *rows) {
    (void)draws;
    for (int64_t i = first; i < end; i++) LEVEL(dequantize_one)(message, m, i, accumulate, rows);
}

#include "rotated_rows_body.h"
