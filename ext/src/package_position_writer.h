/* Writes positions of rows from their bitmaps, as bitmaps or as lists of columns, whichever a block's plan says. */
#ifndef HPCGNN_PACKAGE_POSITION_WRITER_H
#define HPCGNN_PACKAGE_POSITION_WRITER_H
#include "package_positions.h"

/* 64 columns of a bitmap from column j on, a multiple of 64; 0 past the last one. */
static inline uint64_t word_of(const uint8_t *bitmap, int64_t dim, int64_t j) {
    uint64_t word = 0;
    memcpy(&word, bitmap + j / 8, (size_t)least(8, (dim - j + 7) / 8));
    return word;
}

/* The columns of a word that a list names: those set in the bitmap, or, if `flip` is all ones, the others. */
static inline uint64_t listed_of(const uint8_t *bitmap, int64_t dim, int64_t j, uint64_t flip) {
    const uint64_t word = word_of(bitmap, dim, j) ^ flip;
    return dim - j < 64 ? word & ((UINT64_C(1) << (dim - j)) - 1) : word;
}

/* Bits to be written at `next`, lowest first; fewer than 32 are held. */
typedef struct {
    uint8_t *next;
    uint64_t held;
    int num_held;
} bit_sink;

/* At bit `at` of bytes that are zero from there on. */
static inline bit_sink sink_at(uint8_t *bytes, int64_t at) {
    return (bit_sink){bytes + (at >> 3), bytes[at >> 3], (int)(at & 7)};
}

/* Up to 32 bits. */
static inline void put_bits(bit_sink *sink, uint64_t bits, int count) {
    sink->held |= bits << sink->num_held;
    sink->num_held += count;
    if (sink->num_held < 32) return;
    memcpy(sink->next, &sink->held, 4);
    sink->next += 4;
    sink->held >>= 32;
    sink->num_held -= 32;
}

static inline void put_last(bit_sink *sink) { memcpy(sink->next, &sink->held, 8); }

/* The count width that takes the fewest bits for a block; adds those to *bits. */
static uint8_t plan_block(int64_t num_rows, int64_t dim, const int32_t *counts, const int64_t *gap_bits, int64_t *bits) {
    int64_t fewest = INT64_MAX;
    uint8_t best = 0;
    for (int width = 0; width <= bits_of((uint64_t)dim / 2); width++) {
        int64_t all = COUNT_WIDTH_BITS;
        for (int64_t row = 0; row < num_rows; row++) all += bits_of_row(dim, counts[row], gap_bits[row], width);
        if (all >= fewest) continue;
        fewest = all;
        best = (uint8_t)width;
    }
    *bits += fewest;
    return best;
}

static inline void put_map(bit_sink *sink, const uint8_t *bitmap, int64_t dim) {
    put_bits(sink, 0, MAP_HEADER_BITS);
    for (int64_t j = 0; j < dim; j += 32) {
        const int count = (int)least(32, dim - j);
        put_bits(sink, word_of(bitmap, dim, j) & (UINT32_MAX >> (32 - count)), count);
    }
}

/* One part of each gap of a list: its `shift` low bits if is_low, else its other bits as that many zeros and a one. */
static inline void put_gaps(bit_sink *sink, const uint8_t *bitmap, int64_t dim, uint64_t flip, int shift, int is_low) {
    int64_t next = 0;
    for (int64_t j = 0; j < dim; j += 64)
        for (uint64_t ones = listed_of(bitmap, dim, j, flip); ones; ones &= ones - 1) {
            const int64_t column = j + __builtin_ctzll(ones), gap = column - next;
            int64_t high = is_low ? 0 : gap >> shift;
            for (; high > 31; high -= 31) put_bits(sink, 0, 31);
            if (is_low)
                put_bits(sink, (uint64_t)gap & ((UINT64_C(1) << shift) - 1), shift);
            else
                put_bits(sink, UINT64_C(1) << high, (int)high + 1);
            next = column + 1;
        }
}

static inline void put_list(bit_sink *sink, const uint8_t *bitmap, int64_t dim, int64_t count, int count_width) {
    const int shift = list_shift(dim, count);
    int64_t num_values = 0;
    for (int64_t j = 0; j < dim; j += 64) num_values += __builtin_popcountll(word_of(bitmap, dim, j));
    const int lists_zeros = num_values > count;
    put_bits(sink, (uint64_t)(1 | lists_zeros << 1), LIST_HEADER_BITS);
    put_bits(sink, (uint64_t)count, count_width);
    if (shift) put_gaps(sink, bitmap, dim, lists_zeros ? ~UINT64_C(0) : 0, shift, 1);
    put_gaps(sink, bitmap, dim, lists_zeros ? ~UINT64_C(0) : 0, shift, 0);
}
#endif
