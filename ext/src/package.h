/* Adaptive-Package (MEGA, section V-B): rows of small codes as packages of non-zero values, and where in the row each
 * value stands, as a bitmap or, where it is short, a list of columns: see package_positions.h.
 *
 * A stream is a run of bits; bit i is bit i % 8 of byte i / 8, and a field's lowest bit comes first. A package is
 *   mode (2 bits) | width - 1 (3 bits) | lengths[mode] bits of values
 * whose values are fields of `width` bits, then zeros. A value is a magnitude of `width` bits, or, in signed rows, a
 * magnitude of width - 1 bits and above it the sign. A magnitude is never zero, so a field of zero ends a package.
 * Rows share a package until it holds lengths[2] / width values or the width changes; its mode is the least that holds
 * its values. Hence there is one stream for given rows, and a reader refuses any other. */
#ifndef HPCGNN_PACKAGE_H
#define HPCGNN_PACKAGE_H
#include <stdint.h>

#define HEADER_BITS 5

typedef struct {
    int64_t lengths[3]; /* bits of values of a short, medium and long package; each in 8 .. 4096 */
    int is_signed;
} package_format;

/* Between two rows: the first bit of the package that took the last value, the number of values in it and their width.
 * No value: no package is open, and the next one begins at `bit`. */
typedef struct {
    int64_t bit, num_values, width;
} package_place;

/* Rows as packages. Every `interval` rows, an index entry notes where the row's first value lies and where the
 * positions of its block begin, but no width. */
typedef struct {
    package_format format;
    int64_t num_rows, dim, num_bits, num_bytes, interval;
    const uint8_t *stream; /* num_bytes, at least num_bits / 8, rounded up */
    const int64_t *index_bit;
    const int32_t *index_values;
    int64_t num_position_bits, num_position_bytes;
    const uint8_t *positions; /* num_position_bytes, num_position_bits / 8, rounded up */
    const int64_t *index_position;
} packages;

enum {
    PACKAGES_NO_MEMORY = -1,
    PACKAGES_WHOLE,
    FAULT_TRUNCATED,    /* a package passes the end of the stream */
    FAULT_MODE,         /* mode 3 */
    FAULT_WIDTH,        /* the width changes inside a row */
    FAULT_ZERO,         /* a stored magnitude is zero */
    FAULT_PADDING,      /* bits after a package's values that are not zero */
    FAULT_LENGTH,       /* a package longer than its values need, or left although the next one has its width */
    FAULT_BITMAP,       /* a column past the last one */
    FAULT_INDEX,        /* a noted place that is not where its row begins */
    FAULT_REST,         /* bits after the last package */
    FAULT_SHORT_POSITIONS, /* the positions of a row pass the end */
    FAULT_MORE_POSITIONS,  /* positions after those of the last row */
    FAULT_LIST,            /* columns that are listed though the others are fewer */
};

typedef struct {
    int code;
    int64_t row;
} package_fault;

/* Counts the non-zero codes of each row; returns the first row with a code too large for its width, else num_rows.
 * Codes are uint8, or int8 where is_signed. */
int64_t count_codes(const uint8_t *codes, int64_t num_rows, int64_t dim, const uint8_t *width, int is_signed,
                    int32_t *counts);

/* Bits of the stream after rows with these counts are appended at `place`. */
int64_t measure_stream(package_format format, package_place place, const int32_t *counts, const uint8_t *width,
                       int64_t num_rows);

/* Appends rows, the first of which is row `first_row` of the stream, and moves `place`; notes the bitmap of each. The
 * stream has 16 bytes more than measure_stream says and is zero from the place's end on. Index entries of the rows are
 * written at row / interval. */
void append_rows(package_format format, package_place *place, const uint8_t *codes, const uint8_t *width,
                 int64_t num_rows, int64_t dim, int64_t first_row, int64_t interval, uint8_t *stream, uint8_t *bitmap,
                 int64_t *index_bit, int32_t *index_values);

/* Plans how positions of rows are stored, the first of which begins a block: per row the number of columns that a list
 * would have and the bits of their gaps, per block the count width with the fewest bits. Returns all rows' bits. */
int64_t plan_positions(const uint8_t *bitmap, int64_t num_rows, int64_t dim, int64_t interval, int32_t *counts,
                       int64_t *gap_bits, uint8_t *count_width);

/* Writes positions as planned, from `bit` on, where they are zero and have 16 spare bytes; notes each block's begin. */
void write_positions(const uint8_t *bitmap, int64_t num_rows, int64_t dim, int64_t interval, const int32_t *counts,
                     const int64_t *gap_bits, const uint8_t *count_width, int64_t bit, uint8_t *positions,
                     int64_t *index_position);

/* Bitmaps of rows [first, last), (last - first, (dim + 7) / 8); packages are not read. Faults as of decode_rows. */
package_fault read_bitmaps(const packages *p, int64_t first, int64_t last, uint8_t *bitmap);

/* Decodes rows [first, last) into codes, or into float32 rows, code * scale; notes each row's width, 0 for a row of
 * zeros. Each output may be null. Where a fault is found, it is that of the lowest interval, or PACKAGES_NO_MEMORY;
 * outputs are then undefined. */
package_fault decode_rows(const packages *p, int64_t first, int64_t last, uint8_t *codes, float *rows,
                          const float *scale, uint8_t *width);

/* Decodes the rows node[i], each from the index entry before it. */
package_fault decode_chosen(const packages *p, const int64_t *node, int64_t num_chosen, uint8_t *codes);
#endif
