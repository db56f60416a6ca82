/* A cache of rows of any size in front of DRAM; the least recently used row leaves first. */
#ifndef HPCGNN_ROW_CACHE_H
#define HPCGNN_ROW_CACHE_H
#include <stdint.h>

/* Held rows form a ring through `newer` and `older` that begins and ends at entry num_rows; the oldest leaves first.
 * newer[row] is -1 for a row that is not held. held_bytes is what held rows take of `capacity` bytes. */
typedef struct {
    int64_t num_rows, capacity, held_bytes;
    const int64_t *num_bytes;
    int32_t *newer, *older;
} row_cache;

/* Use rows one after the other; missed[i] is 1 where row[i] was not held. A row that is larger than the cache passes
 * by. */
void use_rows(row_cache *cache, const int32_t *row, int64_t num_uses, uint8_t *missed);
#endif
