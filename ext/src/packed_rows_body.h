/* Packed rows to floats, compiled once per SIMD level. Include it after vector.h.
 *
 * A row of b bits is a little-endian bit stream (quantization.h); value = zero_point + step * code, in that order of
 * rounding. Codes of up to 4 bits look their value up where the level has a permutation for it. */

/* What all columns of a row share. `values` holds the value of code number lane % 2^b. */
typedef struct {
    vector_f32 zero_point, step, values;
} LEVEL(affine);
#undef affine_row
#define affine_row LEVEL(affine)

INLINE vector_f32 LEVEL(broadcast)(float x) { return x - (vector_f32){0}; /* x + 0 would lose the sign of -0 */ }

INLINE vector_u32 LEVEL(lane_numbers)(void) {
    static const uint32_t FROM_ZERO[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vector_u32 number;
    memcpy(&number, FROM_ZERO, sizeof number);
    return number;
}

INLINE vector_f32 LEVEL(to_float)(vector_u32 code) {
#if LEVEL_LANES == 16
    return (vector_f32)_mm512_cvtepi32_ps((__m512i)code);
#elif LEVEL_LANES == 8
    return (vector_f32)_mm256_cvtepi32_ps((__m256i)code);
#else
    return __builtin_convertvector((vector_i32)code, vector_f32);
#endif
}

INLINE affine_row LEVEL(affine_row_of)(int b, float zero_point, float step) {
    const vector_f32 code = LEVEL(to_float)(LEVEL(lane_numbers)() & ((1u << b) - 1));
    return (affine_row){LEVEL(broadcast)(zero_point), LEVEL(broadcast)(step), zero_point + step * code};
}

/* LANES codes of 8 bits. */
INLINE vector_u32 LEVEL(widen_bytes)(const uint8_t *packed) {
#if LEVEL_LANES == 16
    return (vector_u32)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)packed));
#elif LEVEL_LANES == 8
    return (vector_u32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)packed));
#else
    return (vector_u32){packed[0], packed[1], packed[2], packed[3]};
#endif
}

/* Values of the columns j .. j+LANES-1, j a multiple of LANES; b is a constant of 1, 2, 4, 8. */
INLINE vector_f32 LEVEL(decode_vector)(const uint8_t *packed, int64_t j, int b, affine_row row) {
    packed += j * b / 8;
    if (b == 8) return row.zero_point + row.step * LEVEL(to_float)(LEVEL(widen_bytes)(packed));
    uint32_t word = 0;
    memcpy(&word, packed, LANES * b > 32 ? 4 : (LANES * b + 7) / 8);
    word >>= j * b % 8; /* half a byte, where 4 lanes of 1 bit are */
#if LEVEL_LANES == 4
    /* Codes are brought down by an exact product: SSE2 can't shift lanes by different counts. */
    const vector_u32 unit = {1, 1u << b, 1u << 2 * b, 1u << 3 * b};
    const vector_f32 code = LEVEL(to_float)(word & (unit * ((1u << b) - 1))) * (1.0f / LEVEL(to_float)(unit));
    return row.zero_point + row.step * code;
#else
    vector_u32 code = ((vector_u32){0} + word) >> LEVEL(lane_numbers)() * (uint32_t)b;
#if LEVEL_LANES == 16
    if (b == 4) {
        const __m512i byte = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)packed));
        code = (vector_u32)_mm512_or_si512(byte, _mm512_slli_epi64(byte, 28)); /* the upper nibble to the upper lane */
    }
    return (vector_f32)_mm512_permutexvar_ps((__m512i)code, (__m512)row.values); /* heeds 4 bits of each lane */
#else
    if (b <= 2) return (vector_f32)_mm256_permutevar_ps((__m256)row.values, (__m256i)code); /* heeds 2 bits */
    return row.zero_point + row.step * LEVEL(to_float)(code & 15);
#endif
#endif
}

/* Values put into the columns j .. j+LANES-1 of a row of any storage, fewer at its end. */
INLINE void LEVEL(put)(void *out, int64_t j, int64_t dim, int storage, int accumulate, vector_f32 value) {
    if (accumulate) value += LEVEL(load_columns)(out, j, dim, storage);
    LEVEL(store_columns)(out, j, dim, storage, value);
}

/* num_columns codes from the first byte of `packed` on; b and storage are constants. */
INLINE void LEVEL(decode_codes)(const uint8_t *packed, int b, float zero_point, float step, int64_t num_columns,
                                void *out, int storage, int accumulate) {
    const affine_row row = LEVEL(affine_row_of)(b, zero_point, step);
    int64_t j = 0;
    for (; j + LANES <= num_columns; j += LANES)
        LEVEL(put)(out, j, num_columns, storage, accumulate, LEVEL(decode_vector)(packed, j, b, row));
    if (j == num_columns) return;
    const int64_t whole_bytes = j * b / 8;
    uint8_t last[LANES] = {0};
    memcpy(last, packed + whole_bytes, (size_t)((num_columns * b + 7) / 8 - whole_bytes));
    const int64_t within = (j * b % 8) / b; /* columns before j in its byte */
    LEVEL(put)(out, j, num_columns, storage, accumulate, LEVEL(decode_vector)(last, within, b, row));
}

/* num_columns elements of one storage to another, in float32 between. */
INLINE void LEVEL(convert_columns)(const void *in, int in_storage, int64_t num_columns, void *out, int out_storage,
                                   int accumulate) {
    for (int64_t j = 0; j < num_columns; j += LANES)
        LEVEL(put)(out, j, num_columns, out_storage, accumulate,
                   LEVEL(load_columns)(in, j, num_columns, in_storage));
}

/* Columns [first, first + num_columns) of one packed row, first a multiple of 8, to floats. A row of 16 bits is of
 * bfloat16. */
INLINE void LEVEL(decode_columns)(const uint8_t *payload, int bit_width, float zero_point, float step, int64_t first,
                                  int64_t num_columns, float *out) {
    const uint8_t *packed = payload + first / 8 * bit_width;
    switch (bit_width) {
    case 1: LEVEL(decode_codes)(packed, 1, zero_point, step, num_columns, out, STORAGE_F32, 0); break;
    case 2: LEVEL(decode_codes)(packed, 2, zero_point, step, num_columns, out, STORAGE_F32, 0); break;
    case 4: LEVEL(decode_codes)(packed, 4, zero_point, step, num_columns, out, STORAGE_F32, 0); break;
    case 8: LEVEL(decode_codes)(packed, 8, zero_point, step, num_columns, out, STORAGE_F32, 0); break;
    case 16: LEVEL(convert_columns)(packed, STORAGE_BF16, num_columns, out, STORAGE_F32, 0); break;
    default: LEVEL(convert_columns)(packed, STORAGE_F32, num_columns, out, STORAGE_F32, 0);
    }
}
