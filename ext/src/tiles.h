/* A 0/1 matrix in CSR form to tiles of 8 rows and 128 columns, one bit per entry; bit_gemm.h has their layout. */
#ifndef HPCGNN_TILES_H
#define HPCGNN_TILES_H
#include <stdint.h>

typedef struct {
    const int64_t *indptr;
    const int32_t *indices; /* in [0, num_columns) */
    int64_t num_rows, num_columns;
} csr_pattern;

/* Tiles with an entry, for each row of tiles: counts[r]. Returns 0, or 1 where memory is short. */
int count_tiles(csr_pattern matrix, int64_t *counts);
/* Fills the tiles begin[r] .. begin[r + 1] - 1, zeros before, of each row r of tiles, ascending by column. A row with
 * room for all its tiles stores all, else only those with an entry. Returns 0, or 1 if memory is short. */
int fill_tiles(csr_pattern matrix, const int64_t *begin, int32_t *tile_column, uint32_t *words);
/* Entries of each row, an entry that is there twice counted once. */
void count_entries(const int64_t *begin, const uint32_t *words, int64_t num_rows, int64_t *counts);
#endif
