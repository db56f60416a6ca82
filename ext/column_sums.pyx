"""Sums of columns. A shell over ext/src/column_sums.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

cdef extern from "column_sums.h":
    int64_t c_num_partial_sums "num_partial_sums" (int64_t) nogil
    void c_column_sums "column_sums" (const void *, int64_t, int64_t, int, float *, float *) nogil
    void c_column_magnitudes "column_magnitudes" (const float *, int64_t, int64_t, double *, double *) nogil


def column_sums(const uint8_t[:, ::1] rows, int storage, float[::1] out):
    """out[j] = sum over i of rows[i, j], in float32."""
    cdef float *partial
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        return
    partial = <float *>malloc(c_num_partial_sums(rows.shape[0]) * out.shape[0] * sizeof(float))
    if partial == NULL:
        raise MemoryError("no memory for the partial sums of a bias gradient")
    with nogil:
        c_column_sums(&rows[0, 0], rows.shape[0], out.shape[0], storage, partial, &out[0])
    free(partial)


def column_magnitudes(const float[:, ::1] rows, double[::1] out):
    """out[j] = sum over i of |rows[i, j]|, in float64."""
    cdef double *partial
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        return
    partial = <double *>malloc(c_num_partial_sums(rows.shape[0]) * out.shape[0] * sizeof(double))
    if partial == NULL:
        raise MemoryError("no memory for the partial sums of magnitudes")
    with nogil:
        c_column_magnitudes(&rows[0, 0], rows.shape[0], out.shape[0], partial, &out[0])
    free(partial)
