/* Kernel body, compiled once a SIMD level by quantization.c. */
#include "vector.h"
#include "philox_body.h"
#include "packed_rows_body.h"
#include "row_range_body.h"
#include "pack_codes_body.h"

/* Codes before they are cut to integers, of the columns j .. j+GROUP-1. */
INLINE void LEVEL(scale_group)(const void *row, int64_t j, int64_t dim, int storage, row_scale scale,
                               const philox_schedule *schedule, int64_t node_id, vector_f32 code[4]) {
    vector_u32 draws[4];
    LEVEL(draw_group)(schedule, node_id, j, 0x4300, draws); /* as floats: 128 + draw / 2^16 */
    for (int v = 0; v < 4; v++) {
        const vector_f32 noise = (vector_f32)draws[v] - 0x1.fffffep6f; /* (draw + 1/2) / 2^16, exactly */
        const vector_f32 x = LEVEL(load_padded)(row, j + v * LANES, dim, storage, LEVEL(broadcast)(scale.zero_point));
        const vector_f32 distance = x - scale.zero_point;
        code[v] = (scale.is_tiny ? distance / scale.step : distance * scale.inverse) + noise;
    }
}

INLINE int LEVEL(quantize_affine_row)(const void *row, int64_t dim, int b, int storage, int64_t node_id,
                                      const philox_schedule *schedule, uint8_t *payload, uint8_t *parameters) {
    float low, high;
    vector_f32 code[4];
    if (!LEVEL(range_of)(row, dim, storage, &low, &high)) return 0;
    const row_scale scale = scale_of(low, high, b, parameters);
    int64_t j = 0;
    for (; j + GROUP <= dim; j += GROUP) {
        LEVEL(scale_group)(row, j, j + GROUP, storage, scale, schedule, node_id, code);
        LEVEL(pack_group)(code, b, payload + j * b / 8);
    }
    if (j < dim) {
        uint8_t last[GROUP];
        LEVEL(scale_group)(row, j, dim, storage, scale, schedule, node_id, code);
        LEVEL(pack_group)(code, b, last);
        memcpy(payload + j * b / 8, last, (size_t)((dim - j) * b + 7) / 8);
    }
    return 1;
}

/* float32 to bfloat16: adding the draw below the cut carries with probability equal to the fraction dropped. Infinity
 * and NaN have no fraction to round, and the largest finite values are kept from carrying into infinity. */
INLINE void LEVEL(round_row)(const float *row, int64_t dim, int64_t node_id, const philox_schedule *schedule,
                             uint8_t *payload) {
    for (int64_t start = 0; start < dim; start += GROUP) {
        vector_u32 draws[4];
        LEVEL(draw_group)(schedule, node_id, start, 0, draws);
        for (int64_t v = 0, j = start; v < 4 && j < dim; v++, j += LANES) {
            const vector_u32 bits = (vector_u32)LEVEL(load_columns)(row, j, dim, STORAGE_F32);
            const vector_u32 has_fraction = (vector_u32)((bits & 0x7fffffff) < 0x7f7f0000);
            const vector_u16 half = LEVEL(narrow)((bits + (draws[v] & has_fraction)) >> 16);
            memcpy(payload + 2 * j, &half, 2 * (size_t)(dim - j < LANES ? dim - j : LANES));
        }
    }
}

INLINE int LEVEL(quantize_row)(const void *row, int64_t dim, int b, int storage, int64_t node_id,
                               const philox_schedule *schedule, uint8_t *payload, uint8_t *parameters) {
    switch (b) {
    case 1: return LEVEL(quantize_affine_row)(row, dim, 1, storage, node_id, schedule, payload, parameters);
    case 2: return LEVEL(quantize_affine_row)(row, dim, 2, storage, node_id, schedule, payload, parameters);
    case 4: return LEVEL(quantize_affine_row)(row, dim, 4, storage, node_id, schedule, payload, parameters);
    case 8: return LEVEL(quantize_affine_row)(row, dim, 8, storage, node_id, schedule, payload, parameters);
    }
    if (wire_storage(b, storage) == storage)
        memcpy(payload, row, (size_t)(dim * storage_bytes(storage)));
    else if (b == 16)
        LEVEL(round_row)(row, dim, node_id, schedule, payload);
    else
        LEVEL(convert_columns)(row, storage, dim, payload, STORAGE_F32, 0);
    return 1;
}

/* Returns 0 where a row of 1 to 8 bits holds a value that can't be quantized. */
static int LEVEL(quantize_one)(const void *rows, const message_rows *m, int64_t i, const philox_schedule *schedule,
                               uint8_t *message) {
    const char *row = row_of(rows, m, i);
    uint8_t *payload = message + m->payload_offset[i], *parameters = message + m->parameter_offset[i];
    switch (m->storage) {
    case STORAGE_BF16:
        return LEVEL(quantize_row)(row, m->dim, m->bit_width[i], STORAGE_BF16, m->node_id[i], schedule, payload, parameters);
    case STORAGE_F16:
        return LEVEL(quantize_row)(row, m->dim, m->bit_width[i], STORAGE_F16, m->node_id[i], schedule, payload, parameters);
    default:
        return LEVEL(quantize_row)(row, m->dim, m->bit_width[i], STORAGE_F32, m->node_id[i], schedule, payload, parameters);
    }
}

INLINE void LEVEL(dequantize_row)(const uint8_t *payload, int b, const uint8_t *parameters, int64_t dim, void *row,
                                  int storage, int accumulate) {
    const int in = wire_storage(b, storage);
    if (b > 8) {
        if (in == storage && !accumulate)
            memcpy(row, payload, (size_t)(dim * storage_bytes(storage)));
        else if (in == STORAGE_F32)
            LEVEL(convert_columns)(payload, STORAGE_F32, dim, row, storage, accumulate);
        else
            LEVEL(convert_columns)(payload, storage == STORAGE_F32 ? STORAGE_BF16 : storage, dim, row, storage, accumulate);
        return;
    }
    uint16_t bits[2];
    memcpy(bits, parameters, sizeof bits);
    const float zero_point = bf16_value(bits[0]), step = bf16_value(bits[1]);
    switch (b) {
    case 1: LEVEL(decode_codes)(payload, 1, zero_point, step, dim, row, storage, accumulate); break;
    case 2: LEVEL(decode_codes)(payload, 2, zero_point, step, dim, row, storage, accumulate); break;
    case 4: LEVEL(decode_codes)(payload, 4, zero_point, step, dim, row, storage, accumulate); break;
    default: LEVEL(decode_codes)(payload, 8, zero_point, step, dim, row, storage, accumulate);
    }
}

static void LEVEL(dequantize_one)(const uint8_t *message, const message_rows *m, int64_t i, int accumulate, void *rows) {
    char *row = (char *)row_of(rows, m, i);
    const uint8_t *payload = message + m->payload_offset[i], *parameters = message + m->parameter_offset[i];
    switch (m->storage) {
    case STORAGE_BF16:
        LEVEL(dequantize_row)(payload, m->bit_width[i], parameters, m->dim, row, STORAGE_BF16, accumulate);
        break;
    case STORAGE_F16:
        LEVEL(dequantize_row)(payload, m->bit_width[i], parameters, m->dim, row, STORAGE_F16, accumulate);
        break;
    default:
        LEVEL(dequantize_row)(payload, m->bit_width[i], parameters, m->dim, row, STORAGE_F32, accumulate);
    }
}
