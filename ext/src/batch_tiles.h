/* Sums of neighbors' rows of signed codes in batches whose adjacencies are tiles of 8 x 128 bits; bit_gemm.h has their
 * layout. Batches lie one after the other and have no arcs between them. */
#ifndef HPCGNN_BATCH_TILES_H
#define HPCGNN_BATCH_TILES_H
#include <stdint.h>

/* Batch b has the rows row_begin[b] .. row_begin[b + 1] - 1 and the rows of tiles tile_row_begin[b] ..; row r of tiles has
 * the tiles tile_begin[r] .. tile_begin[r + 1] - 1, whose columns count from the batch's first row. */
typedef struct {
    int64_t num_batches;
    const int64_t *row_begin, *tile_row_begin, *tile_begin;
    const int32_t *tile_column;
    const uint32_t *tile_words;
    const int64_t *indptr; /* entries of row v: indptr[v + 1] - indptr[v], each in a tile */
} batch_tiles;

/* Rows of dim codes of bit_width bits, the sign included: in -2^(b-1) .. 2^(b-1) - 1. */
typedef struct {
    const int8_t *codes;
    int64_t dim;
    int bit_width;
} signed_rows;

/* Write the sums of the batches first .. end - 1 to out, which has only their rows; one thread per batch. Returns the
 * number of tiles multiplied, or -1 if memory is short. 2^(b-1) is added to each code, and subtracted from the sums. */
int64_t sum_batch_tiles(batch_tiles a, signed_rows h, int64_t first, int64_t end, int32_t *out);
#endif
