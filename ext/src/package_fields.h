/* Packs bytes as fields of `width` bits of a stream, and back, eight at a time. */
#ifndef HPCGNN_PACKAGE_FIELDS_H
#define HPCGNN_PACKAGE_FIELDS_H
#include <stdint.h>
#include <string.h>

#define FIELD_SLACK 16 /* bytes past the last field that may be read or written */
#define EVERY_BYTE 0x0101010101010101u

/* By width: masks of the even fields, of the even pairs, and of the even quartet while 8 bytes are joined. */
#define EVEN_FIELDS(w) {((UINT64_C(1) << (w)) - 1) * 0x0001000100010001u, \
                        ((UINT64_C(1) << 2 * (w)) - 1) * 0x0000000100000001u, (UINT64_C(1) << 4 * (w)) - 1}
static const uint64_t EVEN[9][3] = {{0}, EVEN_FIELDS(1), EVEN_FIELDS(2), EVEN_FIELDS(3), EVEN_FIELDS(4),
                                    EVEN_FIELDS(5), EVEN_FIELDS(6), EVEN_FIELDS(7), EVEN_FIELDS(8)};

/* Eight bytes below 2^width to 8 * width bits. */
static inline uint64_t join_fields(uint64_t bytes, int width) {
    const uint64_t *even = EVEN[width];
    uint64_t x = bytes;
    x = (x & even[0]) | (x & even[0] << 8) >> (8 - width);
    x = (x & even[1]) | (x & even[1] << 16) >> (16 - 2 * width);
    return (x & even[2]) | (x & even[2] << 32) >> (32 - 4 * width);
}

/* 8 * width bits to eight bytes; higher bits are ignored. */
static inline uint64_t split_fields(uint64_t bits, int width) {
    const uint64_t *even = EVEN[width];
    uint64_t x = bits;
    x = (x & even[2]) | (x & even[2] << 4 * width) << (32 - 4 * width);
    x = (x & even[1]) | (x & even[1] << 2 * width) << (16 - 2 * width);
    return (x & even[0]) | (x & even[0] << width) << (8 - width);
}

static inline int has_zero_byte(uint64_t x) { return ((x - EVERY_BYTE) & ~x & (EVERY_BYTE << 7)) != 0; }

/* 64 bits from bit `at` on; bits past the stream's last byte read as zero. */
static inline uint64_t read_bits(const uint8_t *stream, int64_t num_bytes, int64_t at) {
    const int64_t byte = at >> 3;
    const int shift = (int)(at & 7);
    uint8_t bytes[16] = {0};
    if (byte + 9 <= num_bytes)
        memcpy(bytes, stream + byte, 9);
    else if (byte < num_bytes)
        memcpy(bytes, stream + byte, (size_t)(num_bytes - byte));
    uint64_t low;
    memcpy(&low, bytes, 8);
    return low >> shift | ((uint64_t)bytes[8] << 1) << (63 - shift);
}

/* Writes `count` fields at bit `at`, from which on the stream is zero. Up to FIELD_SLACK bytes past the last field,
 * `fields` may be read, and the stream is set to zero. */
static inline void put_fields(uint8_t *stream, int64_t at, const uint8_t *fields, int64_t count, int width) {
    uint8_t *out = stream + (at >> 3);
    const int shift = (int)(at & 7);
    uint64_t carried = *out;
    for (int64_t i = 0; i < count; i += 8, out += width) {
        uint64_t bytes;
        memcpy(&bytes, fields + i, 8);
        if (count - i < 8) bytes &= (UINT64_C(1) << (8 * (count - i))) - 1;
        const uint64_t bits = join_fields(bytes, width), low = carried | bits << shift;
        memcpy(out, &low, 8);
        out[8] = (uint8_t)((bits >> 1) >> (63 - shift));
        carried = width == 8 ? out[8] : out[width];
    }
}

/* Reads `count` fields at bit `at`; up to FIELD_SLACK bytes after them are overwritten. Returns whether a field has no
 * bit of `magnitude` set. */
static inline int get_fields(const uint8_t *stream, int64_t num_bytes, int64_t at, int64_t count, int width,
                             uint64_t magnitude, uint8_t *fields) {
    int has_zero = 0;
    for (int64_t i = 0; i < count; i += 8, at += 8 * width) {
        const uint64_t bytes = split_fields(read_bits(stream, num_bytes, at), width);
        const uint64_t past = count - i < 8 ? ~UINT64_C(0) << (8 * (count - i)) : 0;
        has_zero |= has_zero_byte((bytes & magnitude) | past);
        memcpy(fields + i, &bytes, 8);
    }
    return has_zero;
}
#endif
