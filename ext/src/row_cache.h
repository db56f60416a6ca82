/* A cache of rows of any size in front of DRAM, of which the one that was used longest ago leaves first. */
#ifndef HPCGNN_ROW_CACHE_H
#define HPCGNN_ROW_CACHE_H
#include <stdint.h>

/* Rows that are held form a ring through `newer` and `older`, from and to entry num_rows, the oldest first to leave;
 * newer[row] is -1 where a row is not held. held_bytes is what they take of `capacity` bytes. */
typedef struct {
    int64_t num_rows, capacity, held_bytes;
    const int64_t *num_bytes;
    int32_t *newer, *older;
} row_cache;

/* Use rows one after the other; missed[i] is 1 where row[i] was not held. A row that is larger than the cache passes
 * by. */
void use_rows(row_cache *cache, const int32_t *row, int64_t num_uses, uint8_t *missed);
#endif
