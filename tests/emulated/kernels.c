/* Runs kernels on numbers that any machine makes alike, and prints a hash of what each leaves: the same bits are expected
 * of every processor and level. tests/emulated/test_aarch64.py compares them. */
#include <stdio.h>
#include <stdlib.h>

#include "adam.h"
#include "aggregation.h"
#include "code_aggregation.h"
#include "column_sums.h"
#include "dense.h"
#include "pointwise.h"
#include "quantization.h"

#define NUM_ROWS 700
#define DIM 83
#define OUT_DIM 37
#define DEGREE 9

static uint32_t state = 1;

static uint32_t draw(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

/* In (-1, 1), a multiple of 2^-10: exact in float32 and float16, and rounded in bfloat16. */
static float value(void) { return (float)((int32_t)(draw() % 2047) - 1023) / 1024.0f; }

static void *filled(int64_t count, int storage) {
    uint8_t *rows = malloc((size_t)(count * storage_bytes(storage)));
    for (int64_t i = 0; i < count; i++) {
        const float x = value();
        uint32_t bits;
        memcpy(&bits, &x, 4);
        uint16_t half = (uint16_t)(bits >> 16);
        if (storage == STORAGE_F16) /* normal numbers and zero alone */
            half = (uint16_t)(x == 0.0f ? 0 : (bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023));
        if (storage == STORAGE_F32)
            memcpy(rows + 4 * i, &x, 4);
        else
            memcpy(rows + 2 * i, &half, 2);
    }
    return rows;
}

static void show(const char *kernel, int storage, const void *bytes, int64_t count) {
    uint64_t hash = 14695981039346656037u;
    for (int64_t i = 0; i < count; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
    printf("%s %d %016llx\n", kernel, storage, (unsigned long long)hash);
}

static void check_aggregation(int storage) {
    int64_t *begin = malloc((NUM_ROWS + 1) * sizeof *begin), task[] = {0, 300, NUM_ROWS};
    int32_t *indices = malloc(NUM_ROWS * DEGREE * sizeof *indices);
    float *scale = filled(NUM_ROWS, STORAGE_F32);
    for (int64_t v = 0; v <= NUM_ROWS; v++) begin[v] = v * DEGREE;
    for (int64_t e = 0; e < NUM_ROWS * DEGREE; e++) indices[e] = (int32_t)(draw() % NUM_ROWS);
    void *rows = filled(NUM_ROWS * DIM, storage), *out = filled(NUM_ROWS * DIM, storage);
    const sparse_rows a = {10, NUM_ROWS * DEGREE, 2, 1, begin, begin + 1, task, indices, scale, scale, NULL, NULL};
    const dense_rows h = {rows, NULL, NUM_ROWS, 0, NUM_ROWS, DIM, storage, {NULL, NULL, NULL, NULL}};
    aggregate_rows(a, h, 1, out);
    show("aggregation", storage, out, NUM_ROWS * DIM * storage_bytes(storage));
}

static void check_dense(int storage) {
    const dense_matrix rows = {filled(NUM_ROWS * DIM, storage), NUM_ROWS, DIM, storage};
    const dense_matrix weight = {filled(OUT_DIM * DIM, storage), OUT_DIM, DIM, storage};
    void *out = filled(NUM_ROWS * OUT_DIM, storage), *memory = malloc((size_t)dense_product_bytes(DIM, OUT_DIM));
    dense_product(rows, weight, 1, 1, out, memory);
    show("product", storage, out, NUM_ROWS * OUT_DIM * storage_bytes(storage));
    const dense_matrix left = {out, NUM_ROWS, OUT_DIM, storage};
    float *total = malloc(OUT_DIM * DIM * sizeof *total);
    memory = realloc(memory, (size_t)dense_gradient_bytes(NUM_ROWS, OUT_DIM, DIM));
    dense_gradient(left, rows, total, memory);
    show("gradient", storage, total, OUT_DIM * DIM * 4);
}

static void check_messages(int storage, int rounding, int is_rotated) {
    const uint8_t widths[] = {1, 2, 4, 8, 16, 32};
    int32_t row_index[NUM_ROWS];
    int64_t node_id[NUM_ROWS], payload[NUM_ROWS], parameters[NUM_ROWS], num_bytes = 4 * NUM_ROWS;
    uint8_t bit_width[NUM_ROWS];
    for (int64_t i = 0; i < NUM_ROWS; i++) {
        row_index[i] = (int32_t)((i * 31) % NUM_ROWS);
        node_id[i] = 5000000000 + i;
        bit_width[i] = widths[i % 6];
        parameters[i] = 4 * i;
        payload[i] = num_bytes;
        num_bytes += (DIM * bit_width[i] + 7) / 8;
    }
    const message_rows m = {.num_rows = NUM_ROWS, .dim = DIM, .num_table_rows = NUM_ROWS, .num_bytes = num_bytes,
                            .storage = storage, .is_rotated = is_rotated, .rotation = {3, 7, 13}, .row_index = row_index,
                            .node_id = node_id, .bit_width = bit_width, .payload_offset = payload,
                            .parameter_offset = parameters};
    uint8_t *message = calloc((size_t)num_bytes, 1);
    void *rows = filled(NUM_ROWS * DIM, storage), *back = filled(NUM_ROWS * DIM, storage);
    if (quantize_rows(rows, m, (counter_key){3, 7, 11}, rounding, message) != -1) abort();
    show(rounding == ROUND_NEAREST ? "nearest" : "stochastic", storage, message, num_bytes);
    if (dequantize_rows(message, m, 1, back) != -1) abort();
    show("dequantize", storage, back, NUM_ROWS * DIM * storage_bytes(storage));
}

static void check_pointwise(int storage) {
    int64_t node_id[NUM_ROWS];
    for (int64_t i = 0; i < NUM_ROWS; i++) node_id[i] = i;
    float *moments = malloc(2 * NUM_ROWS * sizeof *moments);
    void *rows = filled(NUM_ROWS * DIM, storage), *out = filled(NUM_ROWS * DIM, storage);
    const activation a = {rows, NUM_ROWS, DIM, storage, NORMALIZE | RECTIFY | DROP, filled(DIM, STORAGE_F32),
                          filled(DIM, STORAGE_F32), 1e-5f, moments, node_id,
                          philox_schedule_of((counter_key){1, 2, 3}), 32768, 2.0f};
    activate_rows(a, out);
    show("activation", storage, out, NUM_ROWS * DIM * storage_bytes(storage));
    float *sums = malloc(4 * 3 * DIM * sizeof *sums), of_weight[DIM], of_bias[DIM];
    activate_backward(a, filled(NUM_ROWS * DIM, storage), 4, sums, out, of_weight, of_bias);
    show("activation back", storage, out, NUM_ROWS * DIM * storage_bytes(storage));
    show("weight of it", storage, of_weight, DIM * 4);
}

static void check_the_rest(void) {
    float *partial = malloc((size_t)num_partial_sums(NUM_ROWS) * DIM * sizeof *partial), sums[DIM];
    column_sums(filled(NUM_ROWS * DIM, STORAGE_F32), NUM_ROWS, DIM, STORAGE_F32, partial, sums);
    show("column sums", 0, sums, DIM * 4);
    float *weights = filled(9000, STORAGE_F32), *gradient = filled(9000, STORAGE_F32), *lr = filled(9000, STORAGE_F32);
    float *decay = filled(9000, STORAGE_F32), *mean = filled(9000, STORAGE_F32), *square = calloc(9000, sizeof *square);
    const adam_check check = adam_step(weights, gradient, lr, decay, mean, square, 9000,
                                       (adam_factors){0.1f, 0.999f, 0.001f, 0.0316f, 1e-8f, -0.01f});
    show("adam", 0, weights, 9000 * 4);
    show("adam's check", 0, &check, sizeof check);
    int64_t indptr[NUM_ROWS + 1];
    int32_t *indices = malloc(NUM_ROWS * DEGREE * sizeof *indices), *out = malloc(NUM_ROWS * DIM * sizeof *out);
    uint8_t *codes = malloc(NUM_ROWS * DIM);
    for (int64_t v = 0; v <= NUM_ROWS; v++) indptr[v] = v * DEGREE;
    for (int64_t e = 0; e < NUM_ROWS * DEGREE; e++) indices[e] = (int32_t)(draw() % NUM_ROWS);
    for (int64_t i = 0; i < NUM_ROWS * DIM; i++) codes[i] = (uint8_t)draw();
    if (sum_code_rows((code_rows){NUM_ROWS, NUM_ROWS * DEGREE, NUM_ROWS, DIM, indptr, indices, codes, 1}, out)) abort();
    show("code sums", 0, out, NUM_ROWS * DIM * 4);
}

int main(void) {
    for (int storage = 0; storage < NUM_STORAGES; storage++) {
        check_aggregation(storage);
        check_dense(storage);
        check_messages(storage, ROUND_STOCHASTIC, 0);
        check_messages(storage, ROUND_NEAREST, 0);
        check_messages(storage, ROUND_STOCHASTIC, 1);
        check_messages(storage, ROUND_NEAREST, 1);
        check_pointwise(storage);
    }
    check_the_rest();
    return 0;
}
