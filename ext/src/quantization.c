#include "quantization.h"

#include <math.h>

#include "rotation.h"

#define BLOCK_ROWS 8 /* rows that are read twice from the first cache, while the next rows are prefetched */
#define CACHE_LINE 64
#define LARGEST_MAGNITUDE 1.6e38f /* its range, and its zero point rounded down, stay finite in bf16 */
#define LARGEST_SUMMED 1e28f      /* ranges above it are summed over columns in units of 1 / SUMMING_UNIT */
#define SUMMING_UNIT 0x1p-32f
#define LARGEST_INVERSE 1e37f     /* steps whose reciprocal is larger divide instead */
#define LARGEST_BF16 0x7f7f       /* finite */
#define MOST_LANES 64             /* blocks of signs that are written behind the last one */

/* How the columns of one row become codes. */
typedef struct {
    float zero_point, step, inverse;
    int is_tiny;
} row_scale;

/* Largest bf16 <= x, for finite x. Below the least finite bf16 it saturates, which a range check has ruled out. */
static inline uint16_t bf16_down(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const int is_cut_up = (bits & 0xffffu) && (bits >> 31); /* truncation moves a negative value up */
    return (uint16_t)((bits >> 16) + (uint32_t)is_cut_up);
}

/* Smallest bf16 >= x, for x >= 0. */
static inline uint16_t bf16_up(double x) {
    const float nearest = (float)x;
    uint32_t bits;
    memcpy(&bits, &nearest, 4);
    bits += (double)nearest < x;
    return (uint16_t)((bits + 0xffffu) >> 16);
}

/* bf16 nearest to x, ties to even, for x >= 0 below the largest finite bf16. */
static inline uint16_t bf16_nearest(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Zero point and step as the receiver reads them, also written as the row's parameters. */
static inline row_scale scale_of(uint16_t zero_point, uint16_t step, uint8_t *parameters) {
    const uint16_t bits[2] = {zero_point, step};
    row_scale scale = {.zero_point = bf16_value(zero_point), .step = bf16_value(step)};
    scale.inverse = scale.step == 0.0f ? 0.0f : 1.0f / scale.step; /* step 0: every column is the zero point, code 0 */
    scale.is_tiny = scale.inverse > LARGEST_INVERSE;
    memcpy(parameters, bits, sizeof bits);
    return scale;
}

static inline row_scale scale_of_range(float low, float high, int bit_width, uint8_t *parameters) {
    const uint16_t zero_point = bf16_down(low);
    const double range = (double)high - (double)bf16_value(zero_point);
    return scale_of(zero_point, bf16_up(range / ((1 << bit_width) - 1)), parameters);
}

/* From the values of code 0 and code `top`. The first is rounded down, so that the step makes up for what was cut. */
static inline row_scale scale_of_line(double first, double last, int top, uint8_t *parameters) {
    const uint16_t zero_point = bf16_down((float)first);
    const double step = (last - (double)bf16_value(zero_point)) / top;
    return scale_of(zero_point, bf16_nearest(step > 0 ? (float)step : 0.0f), parameters);
}

/* The power of two at or below x > 0, but not below the least normal number, so that its inverse is finite. */
static inline float unit_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits &= 0x7f800000u;
    if (bits == 0) bits = 0x00800000u;
    memcpy(&x, &bits, 4);
    return x;
}

/* The even step that leaves draws from a normal distribution of deviation 1 the least squared error (Max, 1960). */
static inline float gaussian_step(int bit_width) {
    return bit_width == 2 ? 0.9957f : bit_width == 4 ? 0.3352f : 0.0308f;
}

/* 1 / step of a rotated row's codes, from the sum of its squares; any number at 1 bit. */
static inline float inverse_step(float energy, int64_t dim, int bit_width) {
    return 1.0f / (gaussian_step(bit_width) * __builtin_sqrtf(energy / (float)dim));
}

/* A rotated row's only parameter, for a step >= 0. */
static inline void write_step(float step, uint8_t *parameters) {
    const uint16_t nearest = bf16_nearest(step), bits = nearest < LARGEST_BF16 ? nearest : LARGEST_BF16;
    memcpy(parameters, &bits, sizeof bits);
}

/* What the rows of one message are rounded and rotated by. */
typedef struct {
    philox_schedule rounding, signs;
    rotation_plan plan; /* of rotated rows */
} message_draws;

/* Where a thread rotates its rows. Not on the stack, which a team of threads may have little of. */
typedef struct {
    float columns[MOST_ROTATED_COLUMNS + COLUMNS_TOGETHER];
    uint64_t signs[2 * (BLOCK_ROWS * MOST_SIGN_BLOCKS + MOST_LANES)];
} row_memory;

static row_memory *thread_memory(void) {
    static _Thread_local _Alignas(CACHE_LINE) row_memory memory;
    return &memory;
}

/* Row i of a message while it is rotated: its columns and signs, and the unit of its columns. */
typedef struct {
    int64_t i;
    float *y, unit;
    const uint64_t *signs;
} rotated_row;

/* The row at a place of its block, as number `number` of those that are rotated together. */
static inline rotated_row rotated_row_of(row_memory *memory, const rotation_plan *plan, int64_t i, int64_t place,
                                         int number) {
    return (rotated_row){.i = i, .y = memory->columns + number * plan->stride, .unit = 1.0f,
                         .signs = memory->signs + 2 * place * plan->num_blocks};
}

static inline const char *row_of(const void *rows, const message_rows *m, int64_t i) {
    return (const char *)rows + m->row_index[i] * m->dim * storage_bytes(m->storage);
}

static inline void prefetch_row(const void *rows, const message_rows *m, int64_t i) {
    const char *row = row_of(rows, m, i);
    for (int64_t b = 0; b < m->dim * storage_bytes(m->storage); b += CACHE_LINE) __builtin_prefetch(row + b);
}

/* Storage of the elements on the wire of a row of 16 or 32 bits. */
static inline int wire_storage(int bit_width, int storage) {
    if (bit_width == 32) return STORAGE_F32;
    return storage == STORAGE_F32 ? STORAGE_BF16 : storage;
}

static inline int is_outside(const message_rows *m, int64_t i) {
    const int64_t b = m->bit_width[i], room = m->num_bytes - (m->dim * b + 7) / 8;
    const int64_t parameter_room = m->num_bytes - (m->is_rotated ? 2 : 4);
    return (uint64_t)m->row_index[i] >= (uint64_t)m->num_table_rows || m->payload_offset[i] < 0 ||
           m->payload_offset[i] > room ||
           (b <= 8 && (m->parameter_offset[i] < 0 || m->parameter_offset[i] > parameter_room)) ||
           (m->is_rotated && m->dim > MOST_ROTATED_COLUMNS);
}

/* The first of rows first .. end - 1 that is not in the table or the message; `end` if there is none. */
static int64_t first_outside(const message_rows *m, int64_t first, int64_t end) {
    while (first < end && !is_outside(m, first)) first++;
    return first;
}

#define BODY "quantization_body.h"
#include "levels.h"

typedef int64_t (*quantize_function)(const void *, const message_rows *, int64_t, int64_t, const message_draws *, int,
                                     uint8_t *);
typedef void (*dequantize_function)(const uint8_t *, const message_rows *, int64_t, int64_t, const message_draws *, int,
                                    void *);
static const quantize_function QUANTIZE[2][HPCGNN_LEVELS] = {ALL_LEVELS(quantize_affine), ALL_LEVELS(quantize_rotated)};
static const dequantize_function DEQUANTIZE[2][HPCGNN_LEVELS] = {ALL_LEVELS(dequantize_affine),
                                                                 ALL_LEVELS(dequantize_rotated)};

static message_draws draws_of(const message_rows *m, counter_key key) {
    message_draws draws = {.rounding = philox_schedule_of(key)};
    if (!m->is_rotated || m->dim > MOST_ROTATED_COLUMNS) return draws;
    draws.signs = philox_schedule_of(m->rotation);
    draws.plan = rotation_plan_of(m->dim, BLOCK_ROWS);
    return draws;
}

static inline int64_t end_of_block(const message_rows *m, int64_t first) {
    return first + BLOCK_ROWS < m->num_rows ? first + BLOCK_ROWS : m->num_rows;
}

int64_t quantize_rows(const void *rows, message_rows m, counter_key key, int rounding, uint8_t *message) {
    const quantize_function quantize = QUANTIZE[m.is_rotated != 0][simd_level()];
    const message_draws draws = draws_of(&m, key);
    int64_t first_bad = m.num_rows, outside = m.num_rows;
    if (m.dim == 0) return -1;
#pragma omp parallel for schedule(static) reduction(min : first_bad, outside)
    for (int64_t first = 0; first < m.num_rows; first += BLOCK_ROWS) {
        const int64_t end = end_of_block(&m, first), found = first_outside(&m, first, end);
        if (found < end) {
            outside = found < outside ? found : outside;
            continue;
        }
        const int64_t stop = quantize(rows, &m, first, end, &draws, rounding, message);
        if (stop < end && stop < first_bad) first_bad = stop;
    }
    if (outside < m.num_rows) return -2 - outside;
    return first_bad == m.num_rows ? -1 : first_bad;
}

int64_t dequantize_rows(const uint8_t *message, message_rows m, int accumulate, void *rows) {
    const dequantize_function dequantize = DEQUANTIZE[m.is_rotated != 0][simd_level()];
    const message_draws draws = draws_of(&m, m.rotation);
    int64_t outside = m.num_rows;
#pragma omp parallel for schedule(static) reduction(min : outside)
    for (int64_t first = 0; first < m.num_rows; first += BLOCK_ROWS) {
        const int64_t end = end_of_block(&m, first), found = first_outside(&m, first, end);
        if (found < outside && found < end) outside = found;
        dequantize(message, &m, first, found, &draws, accumulate, rows);
    }
    return outside == m.num_rows ? -1 : -2 - outside;
}
