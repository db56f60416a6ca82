/* Cross-entropy of rows of logits, and its gradient, in one pass each.
 *
 * Maths: log_sum[i] = m + log(sum over j of exp(x[i, j] - m)), m the largest x[i, j];
 * loss[i] = log_sum[i] - x[i, label].
 * Backward: out[i, j] = gradient * (exp(x[i, j] - log_sum[i]) - (j == label)).
 * Threads: 1 to 32 lanes share a row, as in pointwise.cu; lanes take columns in turn.
 * Accuracy: with e = 2^-24, a loss errs by (dim / 32 + 9) e of the sum's logarithm and 2 e of the row's magnitude; a
 * gradient by that times itself. NaN and infinity among the logits give NaN, as in torch, and so does a label that is
 * no column.
 * Determinism: a row is summed by fixed lanes, in a fixed tree; column_sums.cu adds the rows. No atomics. */
#include "device.cuh"

template <typename T>
DEVICE void loss_rows(const T *logits, const int64_t *labels, int64_t num_rows, int64_t dim, int32_t lanes,
                      float *log_sums, float *losses) {
    const int32_t lane = (int32_t)threadIdx.x % lanes;
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    /* Sums need whole warps, so a sub-warp past the last row goes along. */
    const int64_t columns = row < num_rows ? dim : 0;
    const T *x = logits + (row < num_rows ? row * dim : 0);
    float largest = negative_infinity(), sum = 0.0f;
    for (int64_t j = lane; j < columns; j += lanes) largest = fmaxf(largest, load_f32(x, j));
    largest = largest_of_lanes(largest, lanes);
    for (int64_t j = lane; j < columns; j += lanes) sum += expf(load_f32(x, j) - largest);
    const float log_sum = largest + logf(sum_of_lanes(sum, lanes));
    if (row >= num_rows || lane) return;
    log_sums[row] = log_sum;
    const int64_t label = labels[row];
    losses[row] = label >= 0 && label < dim ? log_sum - load_f32(x, label) : __int_as_float(0x7fffffff);
}

template <typename T>
DEVICE void loss_backward(const T *logits, const int64_t *labels, const float *log_sums, const float *gradient,
                          int64_t num_rows, int64_t dim, int32_t lanes, T *out) {
    const int32_t lane = (int32_t)threadIdx.x % lanes;
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    if (row >= num_rows) return;
    const int64_t label = labels[row];
    const float log_sum = log_sums[row], scale = gradient[0];
    for (int64_t j = lane; j < dim; j += lanes) {
        const float likely = expf(load_f32(logits, row * dim + j) - log_sum);
        store_f32(out, row * dim + j, scale * (j == label ? likely - 1.0f : likely));
    }
}

#define LOSS_ROWS(T, suffix) \
    extern "C" __global__ void loss_rows_##suffix(const T *logits, const int64_t *labels, int64_t num_rows, \
                                                  int64_t dim, int32_t lanes, float *log_sums, float *losses) { \
        loss_rows<T>(logits, labels, num_rows, dim, lanes, log_sums, losses); \
    }
FOR_EACH_STORAGE(LOSS_ROWS)

#define LOSS_BACKWARD(T, suffix) \
    extern "C" __global__ void loss_backward_##suffix( \
        const T *logits, const int64_t *labels, const float *log_sums, const float *gradient, int64_t num_rows, \
        int64_t dim, int32_t lanes, T *out) { \
        loss_backward<T>(logits, labels, log_sums, gradient, num_rows, dim, lanes, out); \
    }
FOR_EACH_STORAGE(LOSS_BACKWARD)
