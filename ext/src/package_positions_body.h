/* Reads where the values of rows stand; compiled once per SIMD level, with the same columns and faults at each. */

static inline int LEVEL(read_map)(package_reader *reader, position_place *place, row_positions *row) {
    const packages *p = reader->p;
    if (p->num_position_bits - place->bit < p->dim) return stop_at(reader, FAULT_SHORT_POSITIONS);
    row->kind = MAPPED;
    for (int64_t j = 0; j < p->dim; j += 64) {
        uint64_t bits = read_bits(p->positions, p->num_position_bytes, place->bit + j);
        if (p->dim - j < 64) bits &= (UINT64_C(1) << (p->dim - j)) - 1;
        memcpy(row->bitmap + j / 8, &bits, 8);
    }
    place->bit += p->dim;
    return 1;
}

/* Notes the places of the ones that end `count` gaps, counted from bit `first`. Returns the bit after the last one, 0
 * if the positions end before it, or -1 if it lies too far to stand for a column. EAGER_ONES are noted at a time, even
 * if fewer are there. */
static inline int64_t LEVEL(find_ones)(const packages *p, int64_t first, int64_t count, int32_t *one) {
    int64_t found = 0;
    for (int64_t at = first; found < count; at += 64) {
        if (at >= p->num_position_bits) return 0;
        if (at - first > p->dim) return -1;
        uint64_t ones = read_bits(p->positions, p->num_position_bytes, at);
#if LEVEL_LANES == 16
        for (int k = 0; k < 64; k += 16, ones >>= 16) {
            const __mmask16 mask = (__mmask16)ones;
            const __m512i bits = _mm512_add_epi32(_mm512_set1_epi32((int)(at - first) + k), _mm512_load_si512(LANE_NUMBERS));
            _mm512_storeu_si512(one + found, _mm512_maskz_compress_epi32(mask, bits));
            found += __builtin_popcount(mask);
        }
#else
        const int64_t end = found + __builtin_popcountll(ones);
        for (int64_t i = found; i < end; i += EAGER_ONES)
            for (int k = 0; k < EAGER_ONES; k++, ones &= ones - 1)
                one[i + k] = (int32_t)(at - first) + __builtin_ctzll(ones | UINT64_C(1) << 63);
        found = end;
#endif
    }
    return first + one[count - 1] + 1;
}

/* Turns ones into columns, eight at a time: each is the sum of the high and low bits of all gaps up to it, plus the
 * number of listed columns before it. Eight lows of SUMMED_SHIFT bits add up in a byte. Returns the last column. */
static inline int64_t LEVEL(add_lows)(const packages *p, int64_t at, int64_t count, int shift, int32_t *column) {
    eight_columns before = {0, 1, 2, 3, 4, 5, 6, 7}, lows = {0};
    for (int64_t i = 0; i < count; i += 8, at += 8 * shift) {
        uint64_t all = 0;
        if (shift) all = split_fields(read_bits(p->positions, p->num_position_bytes, at), shift) * EVERY_BYTE;
        eight_bytes bytes;
        memcpy(&bytes, &all, sizeof bytes);
        eight_columns columns;
        memcpy(&columns, column + i, sizeof columns);
        columns = ((columns - before) << shift) + before + lows + __builtin_convertvector(bytes, eight_columns);
        memcpy(column + i, &columns, sizeof columns);
        lows += (uint32_t)(all >> 56);
        before += 8;
    }
    return column[count - 1];
}

/* As add_lows, one at a time, for any shift. */
static inline int64_t LEVEL(add_wide_lows)(const packages *p, int64_t at, int64_t count, int shift, int32_t *column) {
    int64_t lows = 0, last = -1;
    for (int64_t i = 0; i < count; i++, at += shift) {
        lows += (int64_t)(peek_bits(p->positions, p->num_position_bytes, at) & ((UINT64_C(1) << shift) - 1));
        last = ((int64_t)(column[i] - i) << shift) + lows + i;
        column[i] = (int32_t)last;
    }
    return last;
}

static inline int LEVEL(read_columns)(package_reader *reader, position_place *place, int64_t count, int32_t *column) {
    const packages *p = reader->p;
    const int shift = list_shift(p->dim, count);
    const int64_t lows = place->bit, first = lows + count * shift;
    if (!count) return 1;
    if (p->num_position_bits - first < count) return stop_at(reader, FAULT_SHORT_POSITIONS);
    const int64_t end = LEVEL(find_ones)(p, first, count, column);
    if (end == 0 || end > p->num_position_bits) return stop_at(reader, FAULT_SHORT_POSITIONS);
    /* Refuse high bits that pass the last column first, since columns made of them could overflow int32. */
    if (end < 0 || end - first - count > p->dim >> shift) return stop_at(reader, FAULT_BITMAP);
    place->bit = end;
    const int64_t last = shift <= SUMMED_SHIFT ? LEVEL(add_lows)(p, lows, count, shift, column)
                                               : LEVEL(add_wide_lows)(p, lows, count, shift, column);
    return last < p->dim || stop_at(reader, FAULT_BITMAP);
}

static inline int LEVEL(read_list)(package_reader *reader, position_place *place, row_positions *row) {
    const packages *p = reader->p;
    if (p->num_position_bits - place->bit < 1 + place->count_width) return stop_at(reader, FAULT_SHORT_POSITIONS);
    const uint64_t header = peek_bits(p->positions, p->num_position_bytes, place->bit);
    const int lists_zeros = (int)(header & 1);
    const int64_t count = (int64_t)(header >> 1 & ((UINT64_C(1) << place->count_width) - 1));
    if (2 * count > p->dim - lists_zeros) return stop_at(reader, FAULT_LIST);
    place->bit += 1 + place->count_width;
    if (!LEVEL(read_columns)(reader, place, count, row->column)) return 0;
    row->kind = lists_zeros ? LISTED_ZEROS : LISTED_VALUES;
    row->num_listed = count;
    return 1;
}

/* Reads where the values of the next row stand; returns success. */
static inline int LEVEL(read_positions)(package_reader *reader, position_place *place, row_positions *row) {
    const packages *p = reader->p;
    if (place->bit >= p->num_position_bits) return stop_at(reader, FAULT_SHORT_POSITIONS);
    return peek_bits(p->positions, p->num_position_bytes, place->bit++) & 1 ? LEVEL(read_list)(reader, place, row)
                                                                             : LEVEL(read_map)(reader, place, row);
}
