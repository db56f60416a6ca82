"""One step of Adam, with checks of its values. A shell over ext/src/adam.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int64_t, uint32_t

cdef extern from "adam.h":
    ctypedef struct adam_factors:
        float mean_weight, square_decay, square_weight, unbiased, epsilon, rate
    ctypedef struct adam_check:
        uint32_t largest_gradient, largest_result, hash_low, hash_high
    adam_check c_adam_step "adam_step" (float *, const float *, const float *, const float *, float *, float *, int64_t,
                                        adam_factors) nogil


def adam_step(float[::1] weights, const float[::1] gradient, const float[::1] lr, const float[::1] decay,
              float[::1] mean, float[::1] square, float mean_weight, float square_decay, float square_weight,
              float unbiased, float epsilon, float rate):
    """Update weights and moments; return bits of the largest gradient and result, and both halves of the hash."""
    cdef adam_check check
    cdef adam_factors factors
    if weights.shape[0] == 0:
        return 0, 0, 0, 0
    factors.mean_weight, factors.square_decay, factors.square_weight = mean_weight, square_decay, square_weight
    factors.unbiased, factors.epsilon, factors.rate = unbiased, epsilon, rate
    with nogil:
        check = c_adam_step(&weights[0], &gradient[0], &lr[0], &decay[0], &mean[0], &square[0], weights.shape[0],
                            factors)
    return check.largest_gradient, check.largest_result, check.hash_low, check.hash_high
