#include "package_reader.h"

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

/* Appends values of one row, and keeps the header of the open package as its values ask for. */
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

#define BODY "package_body.h"
#include "levels.h"

typedef int64_t (*count_function)(const uint8_t *, int64_t, int, int, int32_t *);
typedef int64_t (*gather_function)(const uint8_t *, int64_t, uint8_t *, uint8_t *);
typedef int (*row_function)(package_reader *, int64_t, uint8_t *, float *, float, uint8_t *);
static const count_function COUNT[] = ALL_LEVELS(count_row);
static const gather_function GATHER[] = ALL_LEVELS(gather_block);
static const row_function DECODE[] = ALL_LEVELS(decode_row);

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

package_fault decode_rows(const packages *p, int64_t first, int64_t last, uint8_t *codes, float *rows,
                          const float *scale, uint8_t *width) {
    const row_function decode = DECODE[simd_level()];
    package_fault found = {PACKAGES_WHOLE, INT64_MAX};
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t begin = first / p->interval * p->interval; begin < last; begin += p->interval) {
        package_reader reader = {.p = p};
        int64_t row = begin;
        if (start_at(&reader, begin))
            for (; row < least(begin + p->interval, last); row++) {
                const int64_t i = row - first;
                uint8_t row_width;
                const int is_wanted = i >= 0;
                if (!decode(&reader, row, is_wanted && codes ? codes + i * p->dim : NULL,
                            is_wanted && rows ? rows + i * p->dim : NULL, is_wanted && scale ? scale[i] : 0, &row_width))
                    break;
                if (is_wanted && width) width[i] = row_width;
                if (!check_place(&reader, row + 1)) break;
            }
        if (reader.fault) {
#pragma omp critical(package_fault)
            if (row < found.row) found = (package_fault){reader.fault, row};
        }
    }
    if (!found.code && first == last && p->num_rows == 0 && p->num_bits) found = (package_fault){FAULT_REST, 0};
    return found;
}

package_fault decode_chosen(const packages *p, const int64_t *node, int64_t num_chosen, uint8_t *codes) {
    const row_function decode = DECODE[simd_level()];
    package_fault found = {PACKAGES_WHOLE, INT64_MAX};
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t i = 0; i < num_chosen; i++) {
        package_reader reader = {.p = p};
        int64_t row = node[i] / p->interval * p->interval;
        uint8_t width;
        int is_good = start_at(&reader, row);
        for (; is_good && row < node[i]; row++) is_good = decode(&reader, row, NULL, NULL, 0, &width);
        if (is_good) decode(&reader, row, codes ? codes + i * p->dim : NULL, NULL, 0, &width);
        if (reader.fault) {
#pragma omp critical(package_fault)
            if (row < found.row) found = (package_fault){reader.fault, row};
        }
    }
    return found;
}
