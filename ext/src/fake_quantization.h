/* Rounding to the values of small integers, and its gradients:
 *   code = min(floor(|x| / step + 0.5), limit), out = sign(x) * code * step.
 * A step belongs to a row or to a column, a limit to a row or to all. */
#ifndef HPCGNN_FAKE_QUANTIZATION_H
#define HPCGNN_FAKE_QUANTIZATION_H
#include <stdint.h>

typedef struct {
    int64_t num_rows, dim;
    const float *values; /* num_rows x dim */
    const float *step;   /* num_rows, or dim where the steps are the columns' */
    const float *limit;  /* num_rows, or 1 */
    int64_t limit_stride;
    int is_by_column;
} quantized_values;

typedef struct {
    const float *gradient; /* of the quantized values */
    float local_weight;    /* where is_local, the gradient is local_weight * sign(out - x) instead */
    int is_local;
    float *of_values; /* the gradient where a value is not clipped, else 0; NULL for none */
    float *of_step;   /* as step: sum of gradient * (signed code - x / step where it is not clipped) */
    float *clipped;   /* num_rows: sum of gradient * sign(x) where a value is clipped; NULL by column */
} quantized_gradients;

int64_t num_step_sums(int64_t num_rows);

void fake_quantize(quantized_values values, float *out);

/* partial is scratch of num_step_sums(num_rows) * dim floats by column, and not read by row. Sums have one order,
 * whatever the number of threads. */
void fake_quantize_backward(quantized_values values, quantized_gradients gradients, float *partial);
#endif
