#include "package_position_writer.h"

static inline int64_t end_of(const package_format *format, const package_place *place) {
    if (!place->num_values) return place->bit;
    return place->bit + HEADER_BITS + format->lengths[mode_of(format, place->num_values * place->width)];
}

/* Makes `place` a package with room for a value of `width` bits, and returns the room. */
static inline int64_t make_room(const package_format *format, package_place *place, int64_t width) {
    const int64_t full = full_values(format, width);
    if (place->num_values && (place->width != width || place->num_values == full)) {
        place->bit = end_of(format, place);
        place->num_values = 0;
    }
    place->width = width;
    return full - place->num_values;
}

int64_t measure_stream(package_format format, package_place place, const int32_t *counts, const uint8_t *width,
                       int64_t num_rows) {
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t left = counts[row], taken; left; left -= taken) {
            taken = least(left, make_room(&format, &place, width[row]));
            place.num_values += taken;
        }
    return end_of(&format, &place);
}

/* Appends values of one row, and updates the header of the open package to fit its values. */
static void append_values(const package_format *format, package_place *place, const uint8_t *fields, int64_t count,
                          int width, uint8_t *stream) {
    for (int64_t taken; count; count -= taken, fields += taken) {
        taken = least(count, make_room(format, place, width));
        put_fields(stream, place->bit + HEADER_BITS + place->num_values * width, fields, taken, width);
        place->num_values += taken;
        const int header = mode_of(format, place->num_values * width) | (width - 1) << 2;
        uint8_t *byte = stream + (place->bit >> 3);
        const int shift = (int)(place->bit & 7);
        byte[0] = (uint8_t)((byte[0] & ~(31 << shift)) | header << shift);
        byte[1] = (uint8_t)((byte[1] & ~(31 << shift >> 8)) | header << shift >> 8);
    }
}

/* int8 codes to fields, in place. */
static void move_signs(uint8_t *codes, int64_t count, int width) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t is_negative = codes[i] >> 7, negative = (uint8_t)-is_negative;
        codes[i] = (uint8_t)(((codes[i] ^ negative) - negative) | is_negative << (width - 1));
    }
}

#define RUN_SLACK 16 /* bytes of a run of values that are copied at a time */

#define BODY "package_body.h"
#include "levels.h"

typedef int64_t (*count_function)(const uint8_t *, int64_t, int, int, int32_t *);
typedef int64_t (*gather_function)(const uint8_t *, int64_t, uint8_t *, uint8_t *);
typedef int64_t (*plan_function)(const uint8_t *, int64_t, int32_t *);
typedef int (*row_function)(row_reader *, uint8_t *, float *, float, uint8_t *);
typedef int (*bitmap_function)(row_reader *, uint8_t *);
static const count_function COUNT[] = ALL_LEVELS(count_row);
static const gather_function GATHER[] = ALL_LEVELS(gather_block);
static const plan_function PLAN[] = ALL_LEVELS(plan_row);
static const row_function DECODE[] = ALL_LEVELS(decode_row);
static const bitmap_function READ_BITMAP[] = ALL_LEVELS(read_bitmap);

int64_t count_codes(const uint8_t *codes, int64_t num_rows, int64_t dim, const uint8_t *width, int is_signed,
                    int32_t *counts) {
    const count_function count = COUNT[simd_level()];
    int64_t first_bad = num_rows;
#pragma omp parallel for schedule(static) reduction(min : first_bad)
    for (int64_t row = 0; row < num_rows; row++)
        if (!count(codes + row * dim, dim, width[row], is_signed, counts + row) && row < first_bad) first_bad = row;
    return first_bad;
}

void append_rows(package_format format, package_place *place, const uint8_t *codes, const uint8_t *width,
                 int64_t num_rows, int64_t dim, int64_t first_row, int64_t interval, uint8_t *stream, uint8_t *bitmap,
                 int64_t *index_bit, int32_t *index_values) {
    const gather_function gather = GATHER[simd_level()];
    const int64_t row_bytes = (dim + 7) / 8;
    uint8_t fields[BLOCK_COLUMNS + FIELD_SLACK] = {0};
    for (int64_t row = 0; row < num_rows; row++) {
        if ((first_row + row) % interval == 0) {
            index_bit[(first_row + row) / interval] = place->bit;
            index_values[(first_row + row) / interval] = (int32_t)place->num_values;
        }
        for (int64_t j = 0; j < dim; j += BLOCK_COLUMNS) {
            const int64_t count = gather(codes + row * dim + j, least(BLOCK_COLUMNS, dim - j), fields,
                                         bitmap + row * row_bytes + j / 8);
            if (format.is_signed) move_signs(fields, count, width[row]);
            append_values(&format, place, fields, count, width[row], stream);
        }
    }
}

int64_t plan_positions(const uint8_t *bitmap, int64_t num_rows, int64_t dim, int64_t interval, int32_t *counts,
                       int64_t *gap_bits, uint8_t *count_width) {
    const plan_function plan = PLAN[simd_level()];
    int64_t bits = 0;
    for (int64_t row = 0; row < num_rows; row++)
        gap_bits[row] = plan(bitmap + row * ((dim + 7) / 8), dim, counts + row);
    for (int64_t row = 0; row < num_rows; row += interval)
        count_width[row / interval] =
            plan_block(least(interval, num_rows - row), dim, counts + row, gap_bits + row, &bits);
    return bits;
}

void write_positions(const uint8_t *bitmap, int64_t num_rows, int64_t dim, int64_t interval, const int32_t *counts,
                     const int64_t *gap_bits, const uint8_t *count_width, int64_t bit, uint8_t *positions,
                     int64_t *index_position) {
    bit_sink sink = sink_at(positions, bit);
    for (int64_t row = 0; row < num_rows; row++, bitmap += (dim + 7) / 8) {
        const int width = count_width[row / interval];
        if (row % interval == 0) {
            index_position[row / interval] = 8 * (sink.next - positions) + sink.num_held;
            put_bits(&sink, (uint64_t)width, COUNT_WIDTH_BITS);
        }
        if (bits_of_row(dim, counts[row], gap_bits[row], width) < dim + MAP_HEADER_BITS)
            put_list(&sink, bitmap, dim, counts[row], width);
        else
            put_map(&sink, bitmap, dim);
    }
    put_last(&sink);
}

/* Where rows [first, last) go; any may be null. */
typedef struct {
    int64_t first, last;
    uint8_t *codes;
    float *rows;
    const float *scale;
    uint8_t *width;
} row_outputs;

/* Decodes the interval of row `row` up to outputs->last, and returns the row that it stopped at. */
static int64_t decode_interval(row_reader *reader, int64_t row, const row_outputs *out, row_function decode) {
    const packages *p = reader->values.p;
    const int64_t end = least(row + p->interval, out->last);
    if (!start_at(&reader->values, row) || !start_block(&reader->values, &reader->place, row)) return row;
    for (; row < end; row++) {
        const int64_t i = row - out->first;
        const int is_wanted = i >= 0;
        uint8_t width;
        if (!decode(reader, is_wanted && out->codes ? out->codes + i * p->dim : NULL,
                    is_wanted && out->rows ? out->rows + i * p->dim : NULL, is_wanted && out->scale ? out->scale[i] : 0,
                    &width))
            return row;
        if (is_wanted && out->width) out->width[i] = width;
        if (!check_place(&reader->values, row + 1) || !check_block(&reader->values, &reader->place, row + 1)) return row;
    }
    return row;
}

package_fault decode_rows(const packages *p, int64_t first, int64_t last, uint8_t *codes, float *rows,
                          const float *scale, uint8_t *width) {
    const row_function decode = DECODE[simd_level()];
    const row_outputs out = {first, last, codes, rows, scale, width};
    package_fault found = {PACKAGES_WHOLE, INT64_MAX};
    int is_short = 0;
    if (p->num_rows == 0) return fault_of_nothing(p);
#pragma omp parallel reduction(| : is_short)
    {
        row_reader reader;
        is_short |= !open_rows(&reader, p);
#pragma omp for schedule(dynamic, 1)
        for (int64_t begin = first / p->interval * p->interval; begin < last; begin += p->interval) {
            if (is_short) continue;
            reader.values.fault = PACKAGES_WHOLE;
            const int64_t row = decode_interval(&reader, begin, &out, decode);
            if (!reader.values.fault) continue;
#pragma omp critical(package_fault)
            if (row < found.row) found = (package_fault){reader.values.fault, row};
        }
        close_rows(&reader);
    }
    return is_short ? (package_fault){PACKAGES_NO_MEMORY, 0} : found;
}

/* Decodes row `node` from the index entry before it, and returns the row that it stopped at. */
static int64_t decode_one(row_reader *reader, int64_t node, uint8_t *codes, row_function decode) {
    int64_t row = node / reader->values.p->interval * reader->values.p->interval;
    uint8_t width;
    if (!start_at(&reader->values, row) || !start_block(&reader->values, &reader->place, row)) return row;
    for (; row < node; row++)
        if (!decode(reader, NULL, NULL, 0, &width)) return row;
    decode(reader, codes, NULL, 0, &width);
    return row;
}

package_fault decode_chosen(const packages *p, const int64_t *node, int64_t num_chosen, uint8_t *codes) {
    const row_function decode = DECODE[simd_level()];
    package_fault found = {PACKAGES_WHOLE, INT64_MAX};
    int is_short = 0;
#pragma omp parallel reduction(| : is_short)
    {
        row_reader reader;
        is_short |= !open_rows(&reader, p);
#pragma omp for schedule(dynamic, 16)
        for (int64_t i = 0; i < num_chosen; i++) {
            if (is_short) continue;
            reader.values.fault = PACKAGES_WHOLE;
            const int64_t row = decode_one(&reader, node[i], codes ? codes + i * p->dim : NULL, decode);
            if (!reader.values.fault) continue;
#pragma omp critical(package_fault)
            if (row < found.row) found = (package_fault){reader.values.fault, row};
        }
        close_rows(&reader);
    }
    return is_short ? (package_fault){PACKAGES_NO_MEMORY, 0} : found;
}

package_fault read_bitmaps(const packages *p, int64_t first, int64_t last, uint8_t *bitmap) {
    const bitmap_function read = READ_BITMAP[simd_level()];
    const int64_t row_bytes = (p->dim + 7) / 8;
    row_reader reader;
    int is_good = open_rows(&reader, p);
    if (!is_good) reader.values.fault = PACKAGES_NO_MEMORY;
    int64_t row = first / p->interval * p->interval;
    for (; is_good && row < last; row += is_good)
        is_good = (row % p->interval || start_block(&reader.values, &reader.place, row)) &&
                  read(&reader, row < first ? NULL : bitmap + (row - first) * row_bytes) &&
                  check_block(&reader.values, &reader.place, row + 1);
    close_rows(&reader);
    return (package_fault){reader.values.fault, row};
}
