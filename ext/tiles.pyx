"""CSR patterns to tiles of bits. A shell over ext/src/tiles.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "tiles.h":
    ctypedef unsigned int uint32_t
    ctypedef struct csr_pattern:
        const int64_t *indptr
        const int32_t *indices
        int64_t num_rows, num_columns
    int c_count_tiles "count_tiles" (csr_pattern, int64_t *) nogil
    int c_fill_tiles "fill_tiles" (csr_pattern, const int64_t *, int32_t *, uint32_t *) nogil
    void c_count_entries "count_entries" (const int64_t *, const uint32_t *, int64_t, int64_t *) nogil

cdef csr_pattern pattern_of(const int64_t[::1] indptr, const int32_t[::1] indices, int64_t num_columns) noexcept:
    cdef csr_pattern matrix
    matrix.indptr, matrix.indices = &indptr[0], NULL
    if indices.shape[0]:
        matrix.indices = &indices[0]
    matrix.num_rows, matrix.num_columns = indptr.shape[0] - 1, num_columns
    return matrix


def count_tiles(const int64_t[::1] indptr, const int32_t[::1] indices, int64_t num_columns, int64_t[::1] counts):
    """Count the tiles with an entry in each row of tiles."""
    cdef csr_pattern matrix = pattern_of(indptr, indices, num_columns)
    cdef int is_short = 0
    if counts.shape[0]:
        with nogil:
            is_short = c_count_tiles(matrix, &counts[0])
    if is_short:
        raise MemoryError("no memory to count tiles")


def fill_tiles(const int64_t[::1] indptr, const int32_t[::1] indices, int64_t num_columns, const int64_t[::1] begin,
               int32_t[::1] tile_column, int32_t[:, :, ::1] words):
    """Write the tiles' columns and bits to arrays with room for begin[-1] tiles; `words` holds zeros before."""
    cdef csr_pattern matrix = pattern_of(indptr, indices, num_columns)
    cdef int is_short = 0
    if tile_column.shape[0]:
        with nogil:
            is_short = c_fill_tiles(matrix, &begin[0], &tile_column[0], <uint32_t *>&words[0, 0, 0])
    if is_short:
        raise MemoryError("no memory to fill tiles")


def count_entries(const int64_t[::1] begin, const int32_t[:, :, ::1] words, int64_t[::1] counts):
    """Count the entries of each row."""
    if counts.shape[0] == 0 or words.shape[0] == 0:
        return
    with nogil:
        c_count_entries(&begin[0], <const uint32_t *>&words[0, 0, 0], counts.shape[0], &counts[0])
