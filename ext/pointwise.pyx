"""Normalization, ReLU and dropout of rows. A shell over ext/src/pointwise.c; contracts are checked in hpcgnn.ops.

Rows of any storage come as bytes, with the storage's number of storage.h; weights are tensors of float32 or None.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef extern from "pointwise.h":
    enum:
        NORMALIZE, RECTIFY, DROP, STORAGE_F32
    ctypedef struct counter_key:
        uint32_t seed, epoch, stream
    ctypedef struct philox_schedule:
        pass
    philox_schedule philox_schedule_of(counter_key) nogil
    ctypedef struct activation:
        const void *rows
        int64_t num_rows, dim
        int storage, steps
        const float *weight
        const float *bias
        float eps
        float *moments
        const int64_t *node_id
        int64_t first_column
        philox_schedule schedule
        uint32_t threshold
        float scale
    int64_t storage_bytes(int) nogil
    void c_activate_rows "activate_rows" (activation, void *) nogil
    void c_activate_backward "activate_backward" (activation, const void *, int64_t, float *, void *, float *,
                                                  float *) nogil


cdef activation rows_of(const uint8_t[:, ::1] rows, int storage, int steps) noexcept:
    cdef activation a
    a.rows, a.num_rows, a.dim = &rows[0, 0], rows.shape[0], rows.shape[1] // storage_bytes(storage)
    a.storage, a.steps = storage, steps
    a.weight = a.bias = NULL
    a.moments = NULL
    a.node_id = NULL
    a.eps, a.first_column, a.threshold, a.scale = 0.0, 0, 0, 1.0
    return a


cdef void drop(activation *a, const int64_t[::1] node_id, uint32_t seed, uint32_t epoch, uint32_t stream,
               uint32_t threshold, float scale) noexcept:
    """Add the step unless it keeps every element."""
    if threshold == 0:
        return
    a.steps |= DROP
    a.node_id, a.threshold, a.scale = &node_id[0], threshold, scale
    a.schedule = philox_schedule_of(counter_key(seed, epoch, stream))


cdef float[::1] floats_of(values):
    return None if values is None else values.detach().numpy()


cdef void normalize(activation *a, const float[::1] weight, const float[::1] bias, float eps,
                    float[:, ::1] moments) noexcept:
    """Add the step where weights are given."""
    if weight is None:
        return
    a.steps |= NORMALIZE
    a.weight, a.bias, a.eps, a.moments = &weight[0], &bias[0], eps, &moments[0, 0]


def dropout_rows(const uint8_t[:, ::1] rows, const int64_t[::1] node_id, uint32_t seed, uint32_t epoch,
                 uint32_t stream, uint32_t threshold, float scale, uint8_t[:, ::1] out, int storage=STORAGE_F32,
                 int64_t first_column=0):
    """out[i, j] = rows[i, j] * scale, or 0 where the draw of (node_id[i], first_column + j) is below threshold, which is
    not 0."""
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        return
    cdef activation a = rows_of(rows, storage, 0)
    drop(&a, node_id, seed, epoch, stream, threshold, scale)
    a.first_column = first_column
    with nogil:
        c_activate_rows(a, &out[0, 0])


def activate_rows(const uint8_t[:, ::1] rows, int storage, const int64_t[::1] node_id, uint32_t seed, uint32_t epoch,
                  uint32_t stream, uint32_t threshold, float scale, weight, bias, float eps, float[:, ::1] moments,
                  uint8_t[:, ::1] out):
    """out = drop(max(0, normalize(rows))); writes moments[i] = {mean, rstd} where weights are given."""
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        return
    cdef activation a = rows_of(rows, storage, RECTIFY)
    drop(&a, node_id, seed, epoch, stream, threshold, scale)
    normalize(&a, floats_of(weight), floats_of(bias), eps, moments)
    with nogil:
        c_activate_rows(a, &out[0, 0])


def activate_backward(const uint8_t[:, ::1] rows, int storage, const int64_t[::1] node_id, uint32_t seed,
                      uint32_t epoch, uint32_t stream, uint32_t threshold, float scale, weight, bias, float eps,
                      float[:, ::1] moments, const uint8_t[:, ::1] gradient, float[:, :, ::1] sums,
                      uint8_t[:, ::1] rows_gradient, weight_gradient, bias_gradient):
    """Gradients of rows and, where weights are given, of weight and bias; sums is num_blocks x 3 x dim work space."""
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        return
    cdef activation a = rows_of(rows, storage, RECTIFY)
    cdef float *weight_sum = NULL
    cdef float *bias_sum = NULL
    drop(&a, node_id, seed, epoch, stream, threshold, scale)
    normalize(&a, floats_of(weight), floats_of(bias), eps, moments)
    if weight is not None:
        weight_sum, bias_sum = &floats_of(weight_gradient)[0], &floats_of(bias_gradient)[0]
    with nogil:
        c_activate_backward(a, &gradient[0, 0], sums.shape[0], &sums[0, 0, 0], &rows_gradient[0, 0], weight_sum,
                            bias_sum)
