"""Sums of codes over batches of bit tiles. A shell over ext/src/batch_tiles.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int8_t, int32_t, int64_t

cdef extern from "batch_tiles.h":
    ctypedef unsigned int uint32_t
    ctypedef struct batch_tiles:
        int64_t num_batches
        const int64_t *row_begin
        const int64_t *tile_row_begin
        const int64_t *tile_begin
        const int32_t *tile_column
        const uint32_t *tile_words
        const int64_t *indptr
    ctypedef struct signed_rows:
        const int8_t *codes
        int64_t dim
        int bit_width
    int64_t c_sum_batch_tiles "sum_batch_tiles" (batch_tiles, signed_rows, int64_t, int64_t, int32_t *) nogil


cdef class Tiles:
    """The tiles of all batches; see ext/src/batch_tiles.h."""
    cdef batch_tiles tiles
    cdef object kept

    def __init__(self, const int64_t[::1] row_begin, const int64_t[::1] tile_row_begin, const int64_t[::1] tile_begin,
                 const int32_t[::1] tile_column, const int32_t[:, :, ::1] words, const int64_t[::1] indptr):
        self.kept = (row_begin, tile_row_begin, tile_begin, tile_column, words, indptr)
        self.tiles.num_batches = row_begin.shape[0] - 1
        self.tiles.row_begin, self.tiles.tile_row_begin = &row_begin[0], &tile_row_begin[0]
        self.tiles.tile_begin, self.tiles.indptr = &tile_begin[0], &indptr[0]
        self.tiles.tile_column, self.tiles.tile_words = NULL, NULL
        if tile_column.shape[0]:
            self.tiles.tile_column = &tile_column[0]
            self.tiles.tile_words = <const uint32_t *>&words[0, 0, 0]

    def sums(self, const int8_t[:, ::1] codes, int bit_width, int64_t first, int64_t end, int32_t[:, ::1] out):
        """Write the sums of the batches first .. end - 1 to out, which has their rows; return the number of tiles."""
        cdef signed_rows rows
        cdef int64_t num_multiplied = 0
        if out.shape[0] == 0 or codes.shape[0] == 0 or codes.shape[1] == 0:
            return 0
        rows.codes, rows.dim, rows.bit_width = &codes[0, 0], codes.shape[1], bit_width
        with nogil:
            num_multiplied = c_sum_batch_tiles(self.tiles, rows, first, end, &out[0, 0])
        if num_multiplied < 0:
            raise MemoryError("no memory for planes of codes")
        return num_multiplied
