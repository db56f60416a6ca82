#include "quantization.h"

#include <math.h>
#include <string.h>


#define RANGE_LANES 32 /* running minima of a row */
#define CHUNK (PHILOX_DRAWS * PHILOX_LANES) /* columns quantised together; a multiple of 8, so chunks meet at bytes */

static inline float bf16_value(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Largest bf16 <= x, for finite x. Below the least finite bf16 it saturates, which a range check has ruled out. */
static inline uint16_t bf16_down(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint16_t half = (uint16_t)(bits >> 16);
    if ((bits & 0xffffu) && (bits >> 31)) half++; /* truncation moved a negative value up */
    return half;
}

/* Smallest bf16 >= x, for x >= 0. */
static inline uint16_t bf16_up(double x) {
    float nearest = (float)x;
    if ((double)nearest < x) nearest = nextafterf(nearest, INFINITY);
    uint32_t bits;
    memcpy(&bits, &nearest, 4);
    return (uint16_t)((bits + 0xffffu) >> 16);
}

/* Largest magnitude whose range, and whose zero point rounded down, stay finite in bf16. */
#define LARGEST_MAGNITUDE 1.6e38f

#define BODY "quantization_body.h"
#include "levels.h"

typedef int (*quantize_function)(const float *, const message_rows *, int64_t, counter_key, uint8_t *);
typedef void (*dequantize_function)(const uint8_t *, const message_rows *, int64_t, int, float *);
static const quantize_function QUANTIZE[] = ALL_LEVELS(quantize_one);
static const dequantize_function DEQUANTIZE[] = ALL_LEVELS(dequantize_one);

int64_t quantize_rows(const float *rows, message_rows m, counter_key key, uint8_t *message) {
    const quantize_function quantize = QUANTIZE[simd_level()];
    int64_t first_bad = m.num_rows;
    if (m.dim == 0) return -1;
#pragma omp parallel for schedule(static) reduction(min : first_bad)
    for (int64_t i = 0; i < m.num_rows; i++) {
        if (!quantize(rows, &m, i, key, message)) first_bad = i < first_bad ? i : first_bad;
    }
    return first_bad == m.num_rows ? -1 : first_bad;
}

void dequantize_rows(const uint8_t *message, message_rows m, int accumulate, float *rows) {
    const dequantize_function dequantize = DEQUANTIZE[simd_level()];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < m.num_rows; i++) dequantize(message, &m, i, accumulate, rows);
}
