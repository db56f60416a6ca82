/* Rows of codes as fields of 2, 4 or 8 bits; fields of 2 and 4 bits are summed without a byte for each. Included by
 * kernel bodies once per SIMD level, after vector.h.
 *
 * A row of R bytes (a multiple of 8) has R columns in the lowest field of its bytes, the next R in the field above, and
 * so on; a field that is summed holds code + 2^(b-1). Fields are added in place as long as the sums fit: fields of 2
 * bits in 4 bits, then in 8, fields of 4 bits in 8. */

/* Sums of 8-bit fields: LANES as 32 bits. */
INLINE vector_i32 LEVEL(load_unsigned_bytes)(const uint8_t *codes) {
#if LEVEL_LANES == 16
    return (vector_i32)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
#elif LEVEL_LANES == 8
    return (vector_i32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)codes));
#else
    return (vector_i32){codes[0], codes[1], codes[2], codes[3]};
#endif
}

/* Adds `bytes` sums of one byte each to sums of 32 bits, which begin at `base` if is_first. */
INLINE void LEVEL(add_bytes)(const uint8_t *added, int bytes, int is_first, int32_t base, int32_t *sums) {
    if (bytes < LANES) {
        for (int j = 0; j < bytes; j++) sums[j] = (is_first ? base : sums[j]) + added[j];
        return;
    }
    for (int j = 0; j < bytes; j += LANES) {
        vector_i32 sum = (vector_i32){0} + base;
        if (!is_first) memcpy(&sum, sums + j, sizeof sum);
        sum += LEVEL(load_unsigned_bytes)(added + j);
        memcpy(sums + j, &sum, sizeof sum);
    }
}

/* Sum `size` bytes of the rows that entries name, R bytes apart from `rows` on; field f's sums begin at sums + f R. */
#define SUM_FIELDS(size) \
    typedef uint16_t LEVEL(halves_##size) __attribute__((vector_size(size))); \
    typedef uint8_t LEVEL(bytes_##size) __attribute__((vector_size(size))); \
    INLINE LEVEL(halves_##size) LEVEL(load_##size)(const uint8_t *row) { \
        LEVEL(halves_##size) fields; \
        memcpy(&fields, row, sizeof fields); \
        return fields; \
    } \
    INLINE void LEVEL(sum_fields_of_4_##size)(const int32_t *entries, int64_t count, const uint8_t *rows, int64_t R, \
                                              int64_t num_ahead, int32_t *sums) { \
        int64_t e = 0; \
        int is_first = 1; \
        do { \
            const int64_t stop = least(count, e + 17); /* 17 * 15 fits 8 bits */ \
            LEVEL(bytes_##size) low = {0}, high = {0}; \
            for (; e < stop; e++) { \
                if (e + PREFETCH_ENTRIES < num_ahead) __builtin_prefetch(rows + entries[e + PREFETCH_ENTRIES] * R); \
                const LEVEL(halves_##size) fields = LEVEL(load_##size)(rows + entries[e] * R); \
                low += (LEVEL(bytes_##size))(fields & 0x0f0f); \
                high += (LEVEL(bytes_##size))(fields >> 4 & 0x0f0f); \
            } \
            LEVEL(add_bytes)((const uint8_t *)&low, size, is_first, (int32_t)(-8 * count), sums); \
            LEVEL(add_bytes)((const uint8_t *)&high, size, is_first, (int32_t)(-8 * count), sums + R); \
            is_first = 0; \
        } while (e < count); \
    } \
    INLINE void LEVEL(sum_fields_of_2_##size)(const int32_t *entries, int64_t count, const uint8_t *rows, int64_t R, \
                                              int64_t num_ahead, int32_t *sums) { \
        int64_t e = 0; \
        int is_first = 1; \
        do { \
            const int64_t stop = least(count, e + 85); /* 85 * 3 fits 8 bits */ \
            LEVEL(bytes_##size) sum[4] = {{0}}; \
            while (e < stop) { \
                const int64_t few = least(stop, e + 5); /* 5 * 3 fits 4 bits */ \
                LEVEL(halves_##size) even = {0}, odd = {0}; \
                for (; e < few; e++) { \
                    if (e + PREFETCH_ENTRIES < num_ahead) __builtin_prefetch(rows + entries[e + PREFETCH_ENTRIES] * R); \
                    const LEVEL(halves_##size) fields = LEVEL(load_##size)(rows + entries[e] * R); \
                    even += fields & 0x3333; \
                    odd += fields >> 2 & 0x3333; \
                } \
                sum[0] += (LEVEL(bytes_##size))(even & 0x0f0f); \
                sum[1] += (LEVEL(bytes_##size))(odd & 0x0f0f); \
                sum[2] += (LEVEL(bytes_##size))(even >> 4 & 0x0f0f); \
                sum[3] += (LEVEL(bytes_##size))(odd >> 4 & 0x0f0f); \
            } \
            for (int f = 0; f < 4; f++) \
                LEVEL(add_bytes)((const uint8_t *)&sum[f], size, is_first, (int32_t)(-2 * count), sums + f * R); \
            is_first = 0; \
        } while (e < count); \
    }
SUM_FIELDS(8)
SUM_FIELDS(16)
SUM_FIELDS(32)
SUM_FIELDS(64)
#undef SUM_FIELDS

#define SUM_OF(size) \
    if (bits == 4) \
        LEVEL(sum_fields_of_4_##size)(entries, count, rows + done, R, num_ahead, sums + done); \
    else \
        LEVEL(sum_fields_of_2_##size)(entries, count, rows + done, R, num_ahead, sums + done); \
    done += size

/* Sums of the codes of the rows that entries name; the rows of the first num_ahead entries are prefetched. */
static void LEVEL(sum_packed)(const int32_t *entries, int64_t count, const uint8_t *rows, int64_t R, int bits,
                              int64_t num_ahead, int32_t *sums) {
    for (int64_t done = 0; done < R;) {
        const int64_t left = R - done;
        if (left >= 64) {
            SUM_OF(64);
        } else if (left >= 32) {
            SUM_OF(32);
        } else if (left >= 16) {
            SUM_OF(16);
        } else {
            SUM_OF(8);
        }
    }
}
#undef SUM_OF

/* Fields of a row of R bytes from one byte per field, R fields for each place in a byte, and back. Codes of columns
 * past the row's last one do not matter. */
#define FIELD_OF(bits) ((bits) == 8 ? ~UINT64_C(0) : (bits) == 4 ? 0x0f0f0f0f0f0f0f0fu : 0x0303030303030303u)
INLINE void LEVEL(pack_row)(const uint8_t *codes, int64_t R, int bits, uint8_t *row) {
    for (int64_t i = 0; i < R; i += 8) {
        uint64_t packed = 0;
        for (int f = 0; f < 8 / bits; f++) {
            uint64_t eight;
            memcpy(&eight, codes + f * R + i, sizeof eight);
            packed |= (eight & FIELD_OF(bits)) << f * bits;
        }
        memcpy(row + i, &packed, sizeof packed);
    }
}

INLINE void LEVEL(unpack_row)(const uint8_t *row, int64_t R, int bits, uint8_t *codes) {
    for (int64_t i = 0; i < R; i += 8) {
        uint64_t packed;
        memcpy(&packed, row + i, sizeof packed);
        for (int f = 0; f < 8 / bits; f++) {
            const uint64_t eight = packed >> f * bits & FIELD_OF(bits);
            memcpy(codes + f * R + i, &eight, sizeof eight);
        }
    }
}
#undef FIELD_OF
