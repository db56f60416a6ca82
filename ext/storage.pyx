"""Rows of a tensor as bytes for the other kernels: a buffer of its memory, without views of torch's in between."""

from cpython.buffer cimport PyBUF_FORMAT


cdef class RowBytes:
    """The memory of `rows`, a contiguous (n, dim) tensor on the host, as (n, dim * itemsize) uint8; keeps `rows`."""

    cdef object rows
    cdef size_t address
    cdef Py_ssize_t[2] shape, strides

    def __cinit__(self, rows):
        cdef Py_ssize_t num_rows, dim
        if not (rows.is_cpu and rows.is_contiguous()):
            raise BufferError(f"rows as bytes must be contiguous on the host, found {rows.device}, "
                              f"strides {rows.stride()} of shape {tuple(rows.shape)}")
        num_rows, dim = rows.shape
        self.rows, self.address = rows, rows.data_ptr()
        self.shape[0], self.shape[1] = num_rows, dim * <Py_ssize_t>rows.itemsize
        self.strides[0], self.strides[1] = self.shape[1], 1

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        buffer.buf, buffer.obj, buffer.internal = <void *>self.address, self, NULL
        buffer.len, buffer.itemsize, buffer.readonly = self.shape[0] * self.shape[1], 1, 0
        buffer.ndim, buffer.shape, buffer.strides, buffer.suboffsets = 2, self.shape, self.strides, NULL
        buffer.format = NULL
        if flags & PyBUF_FORMAT:
            buffer.format = b"B"
