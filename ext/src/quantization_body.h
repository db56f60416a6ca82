/* Kernel body, compiled once a SIMD level by quantization.c. */

static int LEVEL(row_is_representable)(const float *restrict x, int64_t dim) {
    int bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t j = 0; j < dim; j++) bad |= !(fabsf(x[j]) <= LARGEST_MAGNITUDE);
    return !bad;
}

static void LEVEL(row_range)(const float *restrict x, int64_t dim, float *low, float *high) {
    /* Independent lanes: a single running minimum would wait for its own latency at every column. */
    float lo[RANGE_LANES], hi[RANGE_LANES];
    for (int i = 0; i < RANGE_LANES; i++) lo[i] = hi[i] = x[0];
    int64_t j = 0;
    for (; j + RANGE_LANES <= dim; j += RANGE_LANES)
#pragma omp simd
        for (int i = 0; i < RANGE_LANES; i++) {
            lo[i] = x[j + i] < lo[i] ? x[j + i] : lo[i];
            hi[i] = x[j + i] > hi[i] ? x[j + i] : hi[i];
        }
    for (; j < dim; j++) {
        lo[0] = x[j] < lo[0] ? x[j] : lo[0];
        hi[0] = x[j] > hi[0] ? x[j] : hi[0];
    }
    for (int i = 1; i < RANGE_LANES; i++) {
        lo[0] = lo[i] < lo[0] ? lo[i] : lo[0];
        hi[0] = hi[i] > hi[0] ? hi[i] : hi[0];
    }
    *low = lo[0] + 0.0f; /* +0 whichever zero was met first, so that bytes don't depend on the order */
    *high = hi[0];
}

/* Codes of at most 8*PHILOX_LANES columns; `divide` keeps tiny steps exact whose reciprocal overflows. */
static void LEVEL(round_codes)(const float *restrict x, int64_t n, float zero_point, float step, int levels,
                               const uint16_t *restrict draws, uint8_t *restrict codes) {
    const float top = (float)levels;
    const float inverse = 1.0f / step;
    if (step == 0.0f) {
        memset(codes, 0, (size_t)n);
    } else if (inverse <= 1e37f) {
        for (int64_t j = 0; j < n; j++) {
            float t = (x[j] - zero_point) * inverse + ((float)draws[j] + 0.5f) * (1.0f / 65536.0f);
            t = t > top ? top : t;
            codes[j] = (uint8_t)(int32_t)t;
        }
    } else {
        for (int64_t j = 0; j < n; j++) {
            float t = (x[j] - zero_point) / step + ((float)draws[j] + 0.5f) * (1.0f / 65536.0f);
            t = t > top ? top : t;
            codes[j] = (uint8_t)(int32_t)t;
        }
    }
}

/* Pack n codes; n*b is a multiple of 8 but for the last chunk of a row, whose spare bits are zero. */
static void LEVEL(pack_codes)(const uint8_t *restrict codes, int64_t n, int b, uint8_t *restrict out) {
    const int per_byte = 8 / b;
    const int64_t full = n / per_byte;
    if (b == 8) {
        memcpy(out, codes, (size_t)n);
        return;
    }
    if (b == 4)
        for (int64_t i = 0; i < full; i++) out[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    else if (b == 2)
        for (int64_t i = 0; i < full; i++) {
            const uint8_t *c = codes + 4 * i;
            out[i] = (uint8_t)(c[0] | c[1] << 2 | c[2] << 4 | c[3] << 6);
        }
    else
        for (int64_t i = 0; i < full; i++) {
            uint64_t eight;
            memcpy(&eight, codes + 8 * i, 8);
            /* Gathers bit 0 of eight bytes into the top byte, first code lowest. */
            out[i] = (uint8_t)((eight * 0x0102040810204080u) >> 56);
        }
    if (full * per_byte < n) {
        uint8_t last = 0;
        for (int64_t j = full * per_byte; j < n; j++) last |= (uint8_t)(codes[j] << (b * (j % per_byte)));
        out[full] = last;
    }
}

static void LEVEL(unpack_codes)(const uint8_t *restrict in, int64_t n, int b, uint8_t *restrict codes) {
    const int per_byte = 8 / b, mask = (1 << b) - 1;
    const int64_t full = n / per_byte;
    if (b == 8) {
        memcpy(codes, in, (size_t)n);
        return;
    }
    if (b == 4)
        for (int64_t i = 0; i < full; i++) {
            codes[2 * i] = in[i] & 15;
            codes[2 * i + 1] = in[i] >> 4;
        }
    else if (b == 2)
        for (int64_t i = 0; i < full; i++)
            for (int k = 0; k < 4; k++) codes[4 * i + k] = (in[i] >> (2 * k)) & 3;
    else
        for (int64_t i = 0; i < full; i++)
            for (int k = 0; k < 8; k++) codes[8 * i + k] = (in[i] >> k) & 1;
    for (int64_t j = full * per_byte; j < n; j++)
        codes[j] = (uint8_t)((in[full] >> (b * (j % per_byte))) & mask);
}

static void LEVEL(quantize_affine_row)(const float *restrict x, int64_t dim, int b, int64_t node_id, counter_key key,
                                       uint8_t *restrict payload, uint8_t *restrict parameters) {
    float low, high;
    philox_block draws;
    uint8_t codes[CHUNK];
    const int levels = (1 << b) - 1;
    LEVEL(row_range)(x, dim, &low, &high);
    const uint16_t zero_bits = bf16_down(low);
    const float zero_point = bf16_value(zero_bits);
    const uint16_t step_bits = bf16_up(((double)high - (double)zero_point) / levels);
    const float step = bf16_value(step_bits);
    memcpy(parameters, &zero_bits, 2);
    memcpy(parameters + 2, &step_bits, 2);
    for (int64_t start = 0; start < dim; start += CHUNK) {
        const int64_t n = dim - start < CHUNK ? dim - start : CHUNK;
        philox_draws(key, node_id, (uint32_t)(start / PHILOX_DRAWS), &draws);
        LEVEL(round_codes)(x + start, n, zero_point, step, levels, draws.of, codes);
        LEVEL(pack_codes)(codes, n, b, payload + start * b / 8);
    }
}

static void LEVEL(quantize_bf16_row)(const float *restrict x, int64_t dim, int64_t node_id, counter_key key,
                                     uint8_t *restrict payload) {
    philox_block draws;
    for (int64_t start = 0; start < dim; start += CHUNK) {
        const int64_t n = dim - start < CHUNK ? dim - start : CHUNK;
        philox_draws(key, node_id, (uint32_t)(start / PHILOX_DRAWS), &draws);
        for (int64_t j = 0; j < n; j++) {
            uint32_t bits;
            memcpy(&bits, x + start + j, 4);
            /* Adding the draw below the cut carries with probability equal to the fraction dropped. Infinity and NaN
             * have no fraction to round, and the largest finite values are kept from carrying into infinity. */
            const uint32_t magnitude = bits & 0x7fffffffu;
            const uint32_t rounded = magnitude >= 0x7f7f0000u ? bits : bits + draws.of[j];
            const uint16_t half = (uint16_t)(rounded >> 16);
            memcpy(payload + 2 * (start + j), &half, 2);
        }
    }
}

static void LEVEL(store_row)(const float *restrict values, int64_t n, int accumulate, float *restrict out) {
    if (accumulate)
        for (int64_t j = 0; j < n; j++) out[j] += values[j];
    else
        memcpy(out, values, (size_t)n * sizeof(float));
}

/* Returns 0, and writes nothing, where a row of 1 to 8 bits holds a value that can't be represented. */
static int LEVEL(quantize_one)(const float *rows, const message_rows *m, int64_t i, counter_key key,
                               uint8_t *message) {
    const float *x = rows + (int64_t)m->row_index[i] * m->dim;
    uint8_t *payload = message + m->payload_offset[i];
    if (m->bit_width[i] == 32)
        memcpy(payload, x, (size_t)m->dim * sizeof(float));
    else if (m->bit_width[i] == 16)
        LEVEL(quantize_bf16_row)(x, m->dim, m->node_id[i], key, payload);
    else if (LEVEL(row_is_representable)(x, m->dim))
        LEVEL(quantize_affine_row)(x, m->dim, m->bit_width[i], m->node_id[i], key, payload,
                                   message + m->parameter_offset[i]);
    else
        return 0;
    return 1;
}

static void LEVEL(dequantize_one)(const uint8_t *message, const message_rows *m, int64_t i, int accumulate,
                                  float *rows) {
    float *out = rows + (int64_t)m->row_index[i] * m->dim;
    const uint8_t *payload = message + m->payload_offset[i];
    const int b = m->bit_width[i];
    float zero_point = 0.0f, step = 0.0f;
    if (b <= 8) {
        uint16_t parameters[2];
        memcpy(parameters, message + m->parameter_offset[i], 4);
        zero_point = bf16_value(parameters[0]);
        step = bf16_value(parameters[1]);
    }
    for (int64_t start = 0; start < m->dim; start += CHUNK) {
        const int64_t n = m->dim - start < CHUNK ? m->dim - start : CHUNK;
        float values[CHUNK];
        if (b == 32) {
            memcpy(values, payload + 4 * start, (size_t)n * 4);
        } else if (b == 16) {
            uint16_t halves[CHUNK];
            memcpy(halves, payload + 2 * start, (size_t)n * 2);
            for (int64_t j = 0; j < n; j++) values[j] = bf16_value(halves[j]);
        } else {
            uint8_t codes[CHUNK];
            LEVEL(unpack_codes)(payload + start * b / 8, n, b, codes);
            for (int64_t j = 0; j < n; j++) values[j] = zero_point + step * (float)codes[j];
        }
        LEVEL(store_row)(values, n, accumulate, out + start);
    }
}
