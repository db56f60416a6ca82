#include "vector.h"
#include "package_positions_body.h"

/* The weights of two columns are interleaved, and each pair of halves is multiplied by the two codes. Registers
 * interleave within 128 bits, so the table has its outputs in an order from which sums come out in the natural one. */
#undef HALVES
#define HALVES (2 * LANES)
typedef int16_t LEVEL(halves) __attribute__((vector_size(2 * HALVES)));
#undef vector_halves
#define vector_halves LEVEL(halves)

INLINE int64_t LEVEL(place_of)(int64_t output) {
#if LEVEL_LANES >= 8 || defined(__SSE2__)
    const int64_t i = output % HALVES, lane = i % LANES;
    return output - i + lane / 4 * 8 + i / LANES * 4 + lane % 4;
#else
    return output;
#endif
}

/* LANES pairs of halves, from the low or, if is_high, the high sides of their 128 bits. */
INLINE vector_i32 LEVEL(interleave)(vector_halves a, vector_halves b, int is_high) {
#if LEVEL_LANES == 16
    const __m512i one = (__m512i)a, other = (__m512i)b;
    return (vector_i32)(is_high ? _mm512_unpackhi_epi16(one, other) : _mm512_unpacklo_epi16(one, other));
#elif LEVEL_LANES == 8
    const __m256i one = (__m256i)a, other = (__m256i)b;
    return (vector_i32)(is_high ? _mm256_unpackhi_epi16(one, other) : _mm256_unpacklo_epi16(one, other));
#elif defined(__SSE2__)
    const __m128i one = (__m128i)a, other = (__m128i)b;
    return (vector_i32)(is_high ? _mm_unpackhi_epi16(one, other) : _mm_unpacklo_epi16(one, other));
#else
    vector_i32 pairs;
    for (int i = 0; i < LANES; i++) pairs[i] = (uint16_t)a[i + is_high * LANES] | b[i + is_high * LANES] * 65536;
    return pairs;
#endif
}

/* sum + low half times low half + high half times high half. */
INLINE vector_i32 LEVEL(add_products)(vector_i32 sum, vector_i32 a, vector_i32 b) {
#if LEVEL_LANES == 16
    return sum + (vector_i32)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif LEVEL_LANES == 8
    return sum + (vector_i32)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return sum + (vector_i32)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* Loads a whole register: GCC would copy it in parts, and the load of the whole would wait until these are written. */
INLINE vector_halves LEVEL(load_halves)(const int16_t *p) {
#if LEVEL_LANES == 16
    return (vector_halves)_mm512_loadu_si512(p);
#elif LEVEL_LANES == 8
    return (vector_halves)_mm256_lddqu_si256((const __m256i *)p);
#else
    vector_halves v;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}

/* The weights of columns first .. first + num_columns - 1. */
INLINE void LEVEL(turn_columns)(const weight_rows *weight, int64_t first, const weight_table *table,
                                const int64_t num_columns) {
    const int64_t length = table->row_length;
    int16_t *rows = table->weights + first * length;
    for (int64_t output = 0; output < length; output++) {
        int8_t weights[TABLE_COLUMNS] = {0};
        if (output < weight->num_outputs)
            memcpy(weights, weight->codes + output * weight->dim + first, (size_t)num_columns);
        int16_t *place = rows + LEVEL(place_of)(output);
#pragma GCC unroll 8
        for (int64_t k = 0; k < num_columns; k++) place[k * length] = weights[k];
    }
}

/* As turn_columns, TABLE_COLUMNS or those that are left. */
static void LEVEL(fill_table)(const weight_rows *weight, int64_t first, const weight_table *table) {
    const int64_t left = weight->dim - first;
    if (left >= TABLE_COLUMNS)
        LEVEL(turn_columns)(weight, first, table, TABLE_COLUMNS);
    else
        LEVEL(turn_columns)(weight, first, table, left);
}

/* Which of SCAN_COLUMNS codes are not zero, one bit per code. */
INLINE uint64_t LEVEL(find_codes)(const uint8_t *codes) {
#if LEVEL_LANES == 16
    const __m512i all = _mm512_loadu_si512(codes);
    return _mm512_test_epi8_mask(all, all);
#elif LEVEL_LANES == 8
    const __m256i low = _mm256_loadu_si256((const __m256i *)codes), zero = _mm256_setzero_si256();
    const __m256i high = _mm256_loadu_si256((const __m256i *)(codes + 32));
    const uint64_t bottom = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, zero));
    return ~(bottom | (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, zero)) << 32);
#else
    uint64_t found = 0;
    for (int i = 0; i < SCAN_COLUMNS; i += 8) {
        uint64_t eight;
        memcpy(&eight, codes + i, 8);
        if (!eight) continue;
        for (int j = 0; j < 8; j++) found |= (uint64_t)(codes[i + j] != 0) << (i + j);
    }
    return found;
#endif
}

/* Lists the codes of one row that are not zero. */
static void LEVEL(list_codes)(const code_rows *rows, int64_t row, row_entries *entries) {
    const uint8_t *codes = rows->codes + row * rows->dim;
    int64_t count = 0;
    for (int64_t first = 0; first < rows->dim; first += SCAN_COLUMNS) {
        const int64_t num_columns = least(SCAN_COLUMNS, rows->dim - first);
        uint8_t last[SCAN_COLUMNS] = {0};
        if (num_columns < SCAN_COLUMNS) memcpy(last, codes + first, (size_t)num_columns);
        count += append_columns(LEVEL(find_codes)(num_columns < SCAN_COLUMNS ? last : codes + first), first,
                                entries->column + count);
    }
    for (int64_t e = 0; e < count; e++) {
        const uint8_t code = codes[entries->column[e]];
        entries->code[e] = rows->is_signed ? (int8_t)code : code;
    }
    entries->count = count;
}

/* The columns of one row that have a value; returns their number. */
INLINE int64_t LEVEL(list_columns)(const row_positions *positions, int64_t dim, int32_t *column) {
    int64_t count = 0, listed = 0;
    if (positions->kind == LISTED_VALUES) {
        memcpy(column, positions->column, (size_t)positions->num_listed * 4);
        return positions->num_listed;
    }
    if (positions->kind == MAPPED) {
        for (int64_t j = 0; j < dim; j += SCAN_COLUMNS) {
            uint64_t found;
            memcpy(&found, positions->bitmap + j / 8, 8);
            count += append_columns(found, j, column + count);
        }
        return count;
    }
    for (int64_t j = 0; j < dim; j++)
        if (listed < positions->num_listed && positions->column[listed] == j)
            listed++;
        else
            column[count++] = (int32_t)j;
    return count;
}

/* Lists the next row of a stream; returns success. */
static int LEVEL(read_codes)(row_reader *reader, row_entries *entries) {
    package_reader *values = &reader->values;
    const packages *p = values->p;
    uint8_t fields[BLOCK_COLUMNS + FIELD_SLACK];
    int width = 0;
    if (!LEVEL(read_positions)(values, &reader->place, &reader->positions)) return 0;
    entries->count = LEVEL(list_columns)(&reader->positions, p->dim, entries->column);
    for (int64_t first = 0; first < entries->count; first += BLOCK_COLUMNS) {
        const int64_t count = least(BLOCK_COLUMNS, entries->count - first);
        if (!take_values(values, count, &width, fields)) return 0;
        if (p->format.is_signed) restore_signs(fields, count, width);
        int16_t *code = entries->code + first;
        for (int64_t e = 0; e < count; e++) code[e] = p->format.is_signed ? (int8_t)fields[e] : fields[e];
    }
    return 1;
}

/* num_registers * HALVES outputs of one row from output `first` on, codes taken whole. */
INLINE void LEVEL(multiply_entries)(const row_entries *entries, const weight_table *table, int64_t first, int32_t *out,
                                    const int num_registers) {
    vector_i32 sum[8];
#pragma GCC unroll 8
    for (int v = 0; v < 2 * num_registers; v++) sum[v] = (vector_i32){0};
    for (int64_t e = 0; e < entries->count; e += 2) {
        const int16_t *a = table->weights + entries->column[e] * table->row_length + first;
        const int16_t *b = table->weights + entries->column[e + 1] * table->row_length + first;
        int32_t both;
        memcpy(&both, entries->code + e, sizeof both);
        const vector_i32 codes = (vector_i32){0} + both;
#pragma GCC unroll 4
        for (int v = 0; v < num_registers; v++) {
            const vector_halves one = LEVEL(load_halves)(a + v * HALVES), other = LEVEL(load_halves)(b + v * HALVES);
            sum[2 * v] = LEVEL(add_products)(sum[2 * v], LEVEL(interleave)(one, other, 0), codes);
            sum[2 * v + 1] = LEVEL(add_products)(sum[2 * v + 1], LEVEL(interleave)(one, other, 1), codes);
        }
    }
    memcpy(out + first, sum, (size_t)least(num_registers * HALVES, table->num_outputs - first) * 4);
}

/* Doubles the sums, then adds the weights of `count` columns, or subtracts them if is_negative. */
INLINE void LEVEL(add_plane)(const row_entries *entries, int64_t count, const weight_table *table, int64_t first,
                             int is_negative, vector_i32 *sum, const int num_registers) {
#pragma GCC unroll 8
    for (int v = 0; v < 2 * num_registers; v++) sum[v] += sum[v];
    for (int64_t begin = 0; begin < count; begin += table->num_addends) {
        vector_halves added[4];
#pragma GCC unroll 4
        for (int v = 0; v < num_registers; v++) added[v] = (vector_halves){0};
        for (int64_t e = begin; e < least(begin + table->num_addends, count); e++) {
            const int16_t *a = table->weights + entries->plane[e] * table->row_length + first;
#pragma GCC unroll 4
            for (int v = 0; v < num_registers; v++) added[v] += LEVEL(load_halves)(a + v * HALVES);
        }
        const vector_i32 one = (vector_i32){0} + (is_negative ? 0xffff : 1);
#pragma GCC unroll 4
        for (int v = 0; v < num_registers; v++)
            for (int is_high = 0; is_high < 2; is_high++)
                sum[2 * v + is_high] = LEVEL(add_products)(
                    sum[2 * v + is_high], LEVEL(interleave)(added[v], (vector_halves){0}, is_high), one);
    }
}

/* As multiply_entries, one bit of the codes at a time. */
INLINE void LEVEL(add_entries)(row_entries *entries, const weight_table *table, int64_t first, int32_t *out,
                               const int num_registers) {
    vector_i32 sum[8];
#pragma GCC unroll 8
    for (int v = 0; v < 2 * num_registers; v++) sum[v] = (vector_i32){0};
    for (int bit = entries->num_bits - 1; bit >= 0; bit--) {
        int64_t count = 0;
        for (int64_t e = 0; e < entries->count; e++) {
            entries->plane[count] = entries->column[e];
            count += entries->code[e] >> bit & 1;
        }
        LEVEL(add_plane)(entries, count, table, first, entries->has_signs && bit == entries->num_bits - 1, sum,
                         num_registers);
    }
    memcpy(out + first, sum, (size_t)least(num_registers * HALVES, table->num_outputs - first) * 4);
}

INLINE void LEVEL(sum_outputs)(row_entries *entries, const weight_table *table, int is_by_bit, int64_t first,
                               int32_t *out, const int num_registers) {
    if (is_by_bit)
        LEVEL(add_entries)(entries, table, first, out, num_registers);
    else
        LEVEL(multiply_entries)(entries, table, first, out, num_registers);
}

/* One row of sums. */
static void LEVEL(sum_entries)(row_entries *entries, const weight_table *table, int is_by_bit, int32_t *out) {
    if (is_by_bit) {
        int seen = 0, has_signs = 0;
        for (int64_t e = 0; e < entries->count; e++) {
            seen |= entries->code[e] ^ entries->code[e] >> 15;
            has_signs |= entries->code[e] < 0;
        }
        entries->has_signs = has_signs;
        for (entries->num_bits = has_signs; seen; seen >>= 1) entries->num_bits++;
    } else if (entries->count % 2) {
        entries->column[entries->count] = 0;
        entries->code[entries->count++] = 0;
    }
    int64_t first = 0;
    for (; first + 4 * HALVES <= table->row_length; first += 4 * HALVES)
        LEVEL(sum_outputs)(entries, table, is_by_bit, first, out, 4);
    if (first + 2 * HALVES <= table->row_length) {
        LEVEL(sum_outputs)(entries, table, is_by_bit, first, out, 2);
        first += 2 * HALVES;
    }
    if (first < table->row_length) LEVEL(sum_outputs)(entries, table, is_by_bit, first, out, 1);
}
