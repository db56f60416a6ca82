"""The machine's ceilings of bandwidth. A shell over ext/src/ceilings.c; hpcgnn.bench.host decides what is measured."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "ceilings.h":
    float c_stream_read "stream_read" (const void *, int64_t) nogil
    void c_stream_write "stream_write" (void *, int64_t, int) nogil
    void c_stream_copy "stream_copy" (void *, const void *, int64_t) nogil
    ctypedef struct gather:
        const char *table
        int64_t num_rows, dim
        int storage
        const int32_t *indices
        int64_t num_indices, ahead
    float c_gather_sum "gather_sum" (gather) nogil


def stream_read(const uint8_t[::1] source):
    """Read every byte; return the sum of its float32 values."""
    cdef float total = 0
    if source.shape[0]:
        with nogil:
            total = c_stream_read(&source[0], source.shape[0])
    return total


def stream_write(uint8_t[::1] target, int value):
    """Set every byte to `value`."""
    if target.shape[0]:
        with nogil:
            c_stream_write(&target[0], target.shape[0], value)


def stream_copy(uint8_t[::1] target, const uint8_t[::1] source):
    """Copy as many bytes as the source has."""
    if source.shape[0] > target.shape[0]:
        raise ValueError(f"{source.shape[0]} bytes don't fit into a target of {target.shape[0]}")
    if source.shape[0]:
        with nogil:
            c_stream_copy(&target[0], &source[0], source.shape[0])


def gather_sum(const uint8_t[:, ::1] table, int64_t dim, int storage, const int32_t[::1] indices, int64_t ahead):
    """Sum of the rows `indices` (all in range) of a table of `dim` columns, each prefetched `ahead` entries early."""
    cdef float total = 0
    cdef gather g
    if indices.shape[0] and dim:
        g.table, g.num_rows, g.dim, g.storage = <const char *>&table[0, 0], table.shape[0], dim, storage
        g.indices, g.num_indices, g.ahead = &indices[0], indices.shape[0], ahead
        with nogil:
            total = c_gather_sum(g)
    return total
