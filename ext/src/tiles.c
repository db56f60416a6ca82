#include "tiles.h"

#include <stdlib.h>
#include <string.h>

#define ROWS 8
#define COLUMNS 128
#define ROW_WORDS (COLUMNS / 32)
#define TILE_WORDS (ROWS * ROW_WORDS)

static int64_t num_tile_rows(const csr_pattern *m) { return (m->num_rows + ROWS - 1) / ROWS; }
static int64_t num_tile_columns(const csr_pattern *m) { return (m->num_columns + COLUMNS - 1) / COLUMNS; }
static int64_t row_end(const csr_pattern *m, int64_t r) { return (r + 1) * ROWS < m->num_rows ? (r + 1) * ROWS : m->num_rows; }

/* Flag the columns of tiles that row r of tiles has entries in; returns their number. */
static int64_t flag_columns(const csr_pattern *m, int64_t r, uint8_t *has_entry) {
    int64_t count = 0;
    memset(has_entry, 0, (size_t)num_tile_columns(m));
    for (int64_t e = m->indptr[r * ROWS]; e < m->indptr[row_end(m, r)]; e++) {
        uint8_t *flag = &has_entry[m->indices[e] / COLUMNS];
        count += !*flag;
        *flag = 1;
    }
    return count;
}

int count_tiles(csr_pattern matrix, int64_t *counts) {
    int is_short = 0;
#pragma omp parallel reduction(| : is_short)
    {
        uint8_t *has_entry = malloc((size_t)num_tile_columns(&matrix) + 1);
        is_short = !has_entry;
#pragma omp for schedule(dynamic, 64)
        for (int64_t r = 0; r < num_tile_rows(&matrix); r++)
            if (has_entry) counts[r] = flag_columns(&matrix, r, has_entry);
        free(has_entry);
    }
    return is_short;
}

/* One row of tiles: number its tiles, then set the bits. `place` has room for one number per column of tiles. */
static void fill_row(const csr_pattern *m, int64_t r, const int64_t *begin, int32_t *tile_column, uint32_t *words,
                     uint8_t *has_entry, int64_t *place) {
    const int is_dense = begin[r + 1] - begin[r] == num_tile_columns(m);
    int64_t next = begin[r];
    flag_columns(m, r, has_entry);
    for (int64_t c = 0; c < num_tile_columns(m); c++) {
        if (!is_dense && !has_entry[c]) continue;
        tile_column[next] = (int32_t)c;
        place[c] = next++;
    }
    for (int64_t v = r * ROWS; v < row_end(m, r); v++)
        for (int64_t e = m->indptr[v]; e < m->indptr[v + 1]; e++) {
            const int64_t u = m->indices[e], bit = u % COLUMNS;
            words[place[u / COLUMNS] * TILE_WORDS + v % ROWS * ROW_WORDS + bit / 32] |= 1u << bit % 32;
        }
}

int fill_tiles(csr_pattern matrix, const int64_t *begin, int32_t *tile_column, uint32_t *words) {
    int is_short = 0;
#pragma omp parallel reduction(| : is_short)
    {
        uint8_t *has_entry = malloc((size_t)num_tile_columns(&matrix) + 1);
        int64_t *place = malloc((size_t)(num_tile_columns(&matrix) + 1) * sizeof *place);
        is_short = !has_entry || !place;
#pragma omp for schedule(dynamic, 64)
        for (int64_t r = 0; r < num_tile_rows(&matrix); r++)
            if (has_entry && place) fill_row(&matrix, r, begin, tile_column, words, has_entry, place);
        free(has_entry);
        free(place);
    }
    return is_short;
}

void count_entries(const int64_t *begin, const uint32_t *words, int64_t num_rows, int64_t *counts) {
#pragma omp parallel for schedule(static)
    for (int64_t v = 0; v < num_rows; v++) {
        int64_t count = 0;
        for (int64_t t = begin[v / ROWS]; t < begin[v / ROWS + 1]; t++)
            for (int w = 0; w < ROW_WORDS; w++)
                count += __builtin_popcount(words[t * TILE_WORDS + v % ROWS * ROW_WORDS + w]);
        counts[v] = count;
    }
}
