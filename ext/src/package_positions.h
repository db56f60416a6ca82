/* Where the values of rows stand, as bits: when a row has a list of columns, and how a reader finds it.
 *
 * The rows of an interval are one block: a count width (5 bits), then the rows. A row is
 *   0 | dim bits: bit j is 1 where column j has a value, or
 *   1 | which | count (count width bits) | lows | gaps
 * a list of columns: those with a value (which 0) or, if more than half have one, those without (which 1). A gap is the
 * number of columns between a listed column and the one listed before it; `list_shift` says how many low bits of each
 * gap are in `lows`, and `gaps` has the number in the other bits as that many zeros and a one. */
#ifndef HPCGNN_PACKAGE_POSITIONS_H
#define HPCGNN_PACKAGE_POSITIONS_H
#include "package_reader.h"

#include <stdlib.h>

#define COUNT_WIDTH_BITS 5
#define MAP_HEADER_BITS 1
#define LIST_HEADER_BITS 2 /* and the count */
#define SUMMED_SHIFT 5
#define EAGER_ONES 4
#define LIST_SLACK 80 /* columns past the last one of a list that may be written */

/* Where the values of one row stand: a bitmap whose bits past the last column are zero, or a list of ascending columns,
 * with values or without. Room: dim / 2 + LIST_SLACK columns, and the bitmap in whole words of 8 bytes and one more. */
enum { MAPPED, LISTED_VALUES, LISTED_ZEROS };
typedef struct {
    int kind;
    int64_t num_listed;
    int32_t *column;
    uint8_t *bitmap;
} row_positions;

/* Where the next row is in the positions, and the count width of its block. */
typedef struct {
    int64_t bit;
    int count_width;
} position_place;

static const int32_t LANE_NUMBERS[16] __attribute__((aligned(64))) = {0, 1, 2, 3, 4, 5, 6, 7,
                                                                       8, 9, 10, 11, 12, 13, 14, 15};
/* Unsigned: lanes past the last one hold whatever was there, and may wrap. */
typedef uint32_t eight_columns __attribute__((vector_size(32)));
typedef uint8_t eight_bytes __attribute__((vector_size(8)));

static inline int bits_of(uint64_t number) { return number ? 64 - __builtin_clzll(number) : 0; }

/* Golomb's rule for a row of evenly likely columns, as a power of two: the expected gap, rounded down. */
static inline int list_shift(int64_t dim, int64_t count) { return bits_of((uint64_t)((dim + 1) / (count + 1))) - 1; }

/* Whether a list of list_bits bits is used: only if it saves a quarter of the bitmap, which is read faster. */
static inline int list_pays(int64_t dim, int64_t list_bits) { return 4 * list_bits <= 3 * (dim + MAP_HEADER_BITS); }

/* Bits of a row with `count` listed columns; gap_bits: of `lows` and `gaps`. */
static inline int64_t bits_of_row(int64_t dim, int64_t count, int64_t gap_bits, int count_width) {
    const int64_t list = LIST_HEADER_BITS + count_width + gap_bits;
    return bits_of((uint64_t)count) <= count_width && list_pays(dim, list) ? list : dim + MAP_HEADER_BITS;
}

/* At least 57 bits from bit `at` on; bits past the last byte read as zero. */
static inline uint64_t peek_bits(const uint8_t *bytes, int64_t num_bytes, int64_t at) {
    const int64_t byte = at >> 3;
    if (byte + 8 > num_bytes) return read_bits(bytes, num_bytes, at);
    uint64_t bits;
    memcpy(&bits, bytes + byte, 8);
    return bits >> (at & 7);
}

/* Goes to the noted block of row `row`, a multiple of the interval; returns whether a block can be there. */
static inline int start_block(package_reader *reader, position_place *place, int64_t row) {
    const packages *p = reader->p;
    const int64_t bit = p->index_position[row / p->interval];
    if (bit < 0 || bit > p->num_position_bits || (row == 0 && bit)) return stop_at(reader, FAULT_INDEX);
    if (p->num_position_bits - bit < COUNT_WIDTH_BITS) return stop_at(reader, FAULT_SHORT_POSITIONS);
    place->count_width = (int)(peek_bits(p->positions, p->num_position_bytes, bit) & ((1 << COUNT_WIDTH_BITS) - 1));
    place->bit = bit + COUNT_WIDTH_BITS;
    return 1;
}

/* As check_place, but for the positions. */
static inline int check_block(package_reader *reader, const position_place *place, int64_t row) {
    const packages *p = reader->p;
    if (row == p->num_rows) return place->bit == p->num_position_bits || stop_at(reader, FAULT_MORE_POSITIONS);
    return row % p->interval || p->index_position[row / p->interval] == place->bit || stop_at(reader, FAULT_INDEX);
}

/* Number of listed columns before `end`; at least the first `passed` are. */
static inline int64_t listed_before(const row_positions *row, int64_t passed, int64_t end) {
    if (row->num_listed && row->column[row->num_listed - 1] < end) return row->num_listed;
    while (passed < row->num_listed && row->column[passed] < end) passed++;
    return passed;
}

/* A reader between two rows, and room for the positions of one. */
typedef struct {
    package_reader values;
    position_place place;
    row_positions positions;
} row_reader;

/* Returns whether memory sufficed. close_rows must follow in any case. */
static inline int open_rows(row_reader *reader, const packages *p) {
    *reader = (row_reader){.values = {.p = p}};
    reader->positions.column = calloc((size_t)(p->dim / 2 + LIST_SLACK), 4);
    reader->positions.bitmap = malloc((size_t)(p->dim / 8 + 16));
    return reader->positions.column && reader->positions.bitmap;
}

static inline void close_rows(row_reader *reader) {
    free(reader->positions.column);
    free(reader->positions.bitmap);
}

/* The fault of packages without rows, if any. */
static inline package_fault fault_of_nothing(const packages *p) {
    if (p->num_bits) return (package_fault){FAULT_REST, 0};
    return (package_fault){p->num_position_bits ? FAULT_MORE_POSITIONS : PACKAGES_WHOLE, 0};
}
#endif
