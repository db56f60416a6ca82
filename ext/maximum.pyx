"""Maximum over the entries of a sparse row. A shell over ext/src/maximum.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "maximum.h":
    ctypedef struct maximum_rows:
        int64_t num_entries, num_tasks
        const int64_t *begin
        const int64_t *end
        const int64_t *task
        const int32_t *indices
    void c_maximum_forward "maximum_forward" (maximum_rows, const void *, int64_t, int64_t, int, void *,
                                              int32_t *) nogil
    void c_maximum_backward "maximum_backward" (maximum_rows, const void *, const int32_t *, int64_t, int64_t, int,
                                                void *) nogil

cdef maximum_rows rows_of(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                          const int32_t[::1] indices) noexcept:
    cdef maximum_rows a
    a.num_entries, a.num_tasks = indices.shape[0], task.shape[0] - 1
    a.begin, a.end, a.task = &begin[0], &end[0], &task[0]
    a.indices = &indices[0]
    return a


def maximum_forward(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                    const int32_t[::1] indices, int storage, int64_t dim, const uint8_t[:, ::1] rows,
                    uint8_t[:, ::1] out, int32_t[:, ::1] argmax):
    """Fill out and argmax, row by row."""
    if out.shape[0] == 0 or dim == 0:
        return
    if indices.shape[0] == 0:
        out[:, :] = 0
        argmax[:, :] = -1
        return
    cdef maximum_rows a = rows_of(begin, end, task, indices)
    with nogil:
        c_maximum_forward(a, &rows[0, 0], rows.shape[0], dim, storage, &out[0, 0], &argmax[0, 0])


def maximum_backward(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                     const int32_t[::1] indices, int storage, int64_t dim, const uint8_t[:, ::1] gradient,
                     const int32_t[:, ::1] argmax, uint8_t[:, ::1] out):
    """Fill out with the gradient of the rows that the maximum was taken of."""
    if out.shape[0] == 0 or dim == 0:
        return
    if indices.shape[0] == 0:
        out[:, :] = 0
        return
    cdef maximum_rows a = rows_of(begin, end, task, indices)
    with nogil:
        c_maximum_backward(a, &gradient[0, 0], &argmax[0, 0], gradient.shape[0], dim, storage, &out[0, 0])
