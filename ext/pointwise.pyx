"""Element-wise kernels. A shell over ext/src/pointwise.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int64_t, uint32_t

cdef extern from "pointwise.h":
    ctypedef struct counter_key:
        uint32_t seed, epoch, stream
    void c_dropout_rows "dropout_rows" (const float *, const int64_t *, int64_t, int64_t, counter_key, uint32_t,
                                        float, float *) nogil


def dropout_rows(const float[:, ::1] rows, const int64_t[::1] node_id, uint32_t seed, uint32_t epoch, uint32_t stream,
                 uint32_t threshold, float scale, float[:, ::1] out):
    """out[i, j] = rows[i, j] * scale, or 0 where the draw of (node_id[i], j) is below threshold."""
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        return
    cdef counter_key key
    key.seed, key.epoch, key.stream = seed, epoch, stream
    with nogil:
        c_dropout_rows(&rows[0, 0], &node_id[0], rows.shape[0], rows.shape[1], key, threshold, scale, &out[0, 0])
