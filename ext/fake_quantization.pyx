"""Fake quantization and its gradients. A shell over ext/src/fake_quantization.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

cdef extern from "fake_quantization.h":
    ctypedef struct quantized_values:
        int64_t num_rows, dim
        const float *values
        const float *step
        const float *limit
        int64_t limit_stride
        int is_by_column
    ctypedef struct quantized_gradients:
        const float *gradient
        float local_weight
        int is_local
        float *of_values
        float *of_step
        float *clipped
    int64_t num_step_sums(int64_t) nogil
    void c_fake_quantize "fake_quantize" (quantized_values, float *) nogil
    void c_fake_quantize_backward "fake_quantize_backward" (quantized_values, quantized_gradients, float *) nogil

cdef quantized_values described(const float[:, ::1] values, const float[::1] step, const float[::1] limit,
                                bint is_by_column) noexcept:
    cdef quantized_values a
    a.num_rows, a.dim = values.shape[0], values.shape[1]
    a.values, a.step, a.limit = &values[0, 0], &step[0], &limit[0]
    a.limit_stride = 0 if limit.shape[0] == 1 else 1
    a.is_by_column = is_by_column
    return a


def fake_quantize(const float[:, ::1] values, const float[::1] step, const float[::1] limit, bint is_by_column,
                  float[:, ::1] out):
    """out = step * code with the sign of the value."""
    cdef quantized_values a
    if values.shape[0] == 0 or values.shape[1] == 0:
        return
    a = described(values, step, limit, is_by_column)
    with nogil:
        c_fake_quantize(a, &out[0, 0])


def fake_quantize_backward(const float[:, ::1] values, const float[:, ::1] gradient, const float[::1] step,
                           const float[::1] limit, bint is_by_column, bint is_local, float local_weight,
                           float[:, ::1] of_values, float[::1] of_step, float[::1] clipped):
    """Write the gradients that ext/src/fake_quantization.h describes; of_values and clipped may be None."""
    cdef quantized_values a
    cdef quantized_gradients g
    cdef float *partial = NULL
    if values.shape[0] == 0 or values.shape[1] == 0:
        of_step[:] = 0
        if clipped is not None:
            clipped[:] = 0
        return
    a = described(values, step, limit, is_by_column)
    g.gradient, g.is_local, g.local_weight = &gradient[0, 0], is_local, local_weight
    g.of_values = NULL if of_values is None else &of_values[0, 0]
    g.of_step = &of_step[0]
    g.clipped = NULL if clipped is None else &clipped[0]
    if is_by_column:
        partial = <float *>malloc(num_step_sums(a.num_rows) * a.dim * sizeof(float))
        if partial == NULL:
            raise MemoryError("no memory for the partial sums of a step's gradient")
    with nogil:
        c_fake_quantize_backward(a, g, partial)
    free(partial)
