/* Reading of a package stream, value by value, for kernels that decode rows or use them as they are read. */
#ifndef HPCGNN_PACKAGE_READER_H
#define HPCGNN_PACKAGE_READER_H
#include "numbers.h"
#include "package.h"
#include "package_fields.h"

#define BLOCK_COLUMNS 512 /* columns that are decoded at a time */

static inline int64_t full_values(const package_format *format, int64_t width) { return format->lengths[2] / width; }

/* The least mode whose package holds `bits` of values. */
static inline int mode_of(const package_format *format, int64_t bits) {
    return (bits > format->lengths[0]) + (bits > format->lengths[1]);
}

/* A reader between two values: the open package, its end, and the most values that it can hold. */
typedef struct {
    const packages *p;
    package_place place;
    int64_t end, room;
    int mode, fault;
} package_reader;

static inline int stop_at(package_reader *reader, int fault) {
    reader->fault = fault;
    return 0;
}

/* Reads the header at place.bit; returns whether a whole package is there. */
static inline int open_package(package_reader *reader) {
    const packages *p = reader->p;
    const int64_t left = p->num_bits - reader->place.bit;
    if (left < HEADER_BITS) return stop_at(reader, FAULT_TRUNCATED);
    const uint64_t header = read_bits(p->stream, p->num_bytes, reader->place.bit);
    if ((header & 3) == 3) return stop_at(reader, FAULT_MODE);
    reader->mode = (int)(header & 3);
    const int64_t length = p->format.lengths[reader->mode];
    if (left - HEADER_BITS < length) return stop_at(reader, FAULT_TRUNCATED);
    reader->place.width = (int64_t)(header >> 2 & 7) + 1;
    reader->end = reader->place.bit + HEADER_BITS + length;
    reader->room = length / reader->place.width;
    return 1;
}

/* Leaves the open package; returns whether its mode and its padding fit its values. */
static inline int close_package(package_reader *reader) {
    const packages *p = reader->p;
    const package_place *place = &reader->place;
    if (!place->num_values) return 1;
    if (mode_of(&p->format, place->num_values * place->width) != reader->mode) return stop_at(reader, FAULT_LENGTH);
    for (int64_t at = place->bit + HEADER_BITS + place->num_values * place->width; at < reader->end; at += 64) {
        const int64_t left = reader->end - at;
        const uint64_t bits = read_bits(p->stream, p->num_bytes, at);
        if (left >= 64 ? bits : bits & ((UINT64_C(1) << left) - 1)) return stop_at(reader, FAULT_PADDING);
    }
    reader->place.bit = reader->end;
    reader->place.num_values = 0;
    return 1;
}

/* Whether the open package is full, or ends with a field of zero. */
static inline int is_spent(const package_reader *reader) {
    const package_place *place = &reader->place;
    if (place->num_values == reader->room) return 1;
    const int64_t next = place->bit + HEADER_BITS + place->num_values * place->width;
    return !(read_bits(reader->p->stream, reader->p->num_bytes, next) & ((UINT64_C(1) << place->width) - 1));
}

/* Goes to the package of the next value; returns whether there is a good one. */
static inline int next_package(package_reader *reader) {
    const int64_t width = reader->place.width;
    const int was_left = reader->place.num_values && reader->place.num_values < full_values(&reader->p->format, width);
    if (!close_package(reader) || !open_package(reader)) return 0;
    return was_left && reader->place.width == width ? stop_at(reader, FAULT_LENGTH) : 1;
}

/* Reads the next `count` values of a row into fields; *width is 0 before the row's first value. Returns success. */
static inline int take_values(package_reader *reader, int64_t count, int *width, uint8_t *fields) {
    const packages *p = reader->p;
    for (int64_t taken; count; count -= taken, fields += taken) {
        package_place *place = &reader->place;
        if ((!place->num_values || is_spent(reader)) && !next_package(reader)) return 0;
        if (*width && *width != place->width) return stop_at(reader, FAULT_WIDTH);
        *width = (int)place->width;
        taken = least(count, reader->room - place->num_values);
        const uint64_t magnitude = ((UINT64_C(1) << (*width - (p->format.is_signed != 0))) - 1) * EVERY_BYTE;
        if (get_fields(p->stream, p->num_bytes, place->bit + HEADER_BITS + place->num_values * *width, taken, *width,
                       magnitude, fields))
            return stop_at(reader, FAULT_ZERO);
        place->num_values += taken;
    }
    return 1;
}

/* Goes to the noted begin of row `row`, a multiple of the interval; returns whether a row can begin there. */
static inline int start_at(package_reader *reader, int64_t row) {
    const packages *p = reader->p;
    const int64_t bit = p->index_bit[row / p->interval], num_values = p->index_values[row / p->interval];
    if (bit < 0 || bit > p->num_bits || num_values < 0 || (row == 0 && (bit || num_values)))
        return stop_at(reader, FAULT_INDEX);
    reader->place.bit = bit;
    reader->place.num_values = 0;
    if (!num_values) return 1;
    if (!open_package(reader)) return 0;
    if (num_values > reader->room) return stop_at(reader, FAULT_INDEX);
    reader->place.num_values = num_values;
    return 1;
}

/* After row - 1: is the reader where row `row` is noted to begin, or, after the last row, at the end of the stream? */
static inline int check_place(package_reader *reader, int64_t row) {
    const packages *p = reader->p;
    if (row == p->num_rows) {
        if (!close_package(reader)) return 0;
        return reader->place.bit == p->num_bits || stop_at(reader, FAULT_REST);
    }
    if (row % p->interval) return 1;
    const int64_t i = row / p->interval;
    if (p->index_bit[i] == reader->place.bit && p->index_values[i] == reader->place.num_values) return 1;
    return stop_at(reader, FAULT_INDEX);
}

/* Fields to int8 codes, in place. */
static inline void restore_signs(uint8_t *fields, int64_t count, int width) {
    const uint8_t magnitude = (uint8_t)((1 << (width - 1)) - 1);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t negative = (uint8_t)-(fields[i] >> (width - 1));
        fields[i] = (uint8_t)(((fields[i] & magnitude) ^ negative) - negative);
    }
}

/* Number of ones in `count` bytes, of at most a block. */
static inline int64_t count_ones(const uint8_t *bytes, int64_t count) {
    int64_t ones = 0;
    for (int64_t i = 0; i < count; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, (size_t)least(8, count - i));
        ones += __builtin_popcountll(word);
    }
    return ones;
}
#endif
