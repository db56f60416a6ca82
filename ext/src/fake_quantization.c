#include "fake_quantization.h"

#define BLOCK_ROWS 256

#define BODY "fake_quantization_body.h"
#include "levels.h"

typedef void (*forward_function)(const quantized_values *, int64_t, int64_t, float *);
typedef void (*backward_function)(const quantized_values *, const quantized_gradients *, int64_t, int64_t, float *);
static const forward_function QUANTIZE[] = ALL_LEVELS(quantize_range);
static const backward_function BACKWARD[] = ALL_LEVELS(backward_range);

int64_t num_step_sums(int64_t num_rows) { return (num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }

static int64_t end_of_block(int64_t block, int64_t num_rows) {
    return (block + 1) * BLOCK_ROWS < num_rows ? (block + 1) * BLOCK_ROWS : num_rows;
}

void fake_quantize(quantized_values values, float *out) {
    const forward_function quantize = QUANTIZE[simd_level()];
    const int64_t num_blocks = num_step_sums(values.num_rows);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < num_blocks; b++)
        quantize(&values, b * BLOCK_ROWS, end_of_block(b, values.num_rows), out);
}

void fake_quantize_backward(quantized_values values, quantized_gradients gradients, float *partial) {
    const backward_function backward = BACKWARD[simd_level()];
    const int64_t num_blocks = num_step_sums(values.num_rows), dim = values.dim;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < num_blocks; b++)
        backward(&values, &gradients, b * BLOCK_ROWS, end_of_block(b, values.num_rows),
                 values.is_by_column ? partial + b * dim : NULL);
    if (!values.is_by_column) return;
    memset(gradients.of_step, 0, (size_t)dim * sizeof(float));
    for (int64_t b = 0; b < num_blocks; b++)
        for (int64_t j = 0; j < dim; j++) gradients.of_step[j] += partial[b * dim + j];
}
