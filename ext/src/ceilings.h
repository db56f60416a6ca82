/* What the machine can do at best: memory read, written and copied, and rows gathered. Nothing here computes a result
 * that the program needs; hpcgnn bench measures other kernels against these. */
#ifndef HPCGNN_CEILINGS_H
#define HPCGNN_CEILINGS_H
#include "storage.h"

/* Streams over num_bytes, shared among the threads in equal pieces. */
float stream_read(const void *source, int64_t num_bytes);
void stream_write(void *target, int64_t num_bytes, int value);
void stream_copy(void *target, const void *source, int64_t num_bytes);

/* Rows of a table in any order: row indices[e], fetched when entry e - ahead is read. */
typedef struct {
    const char *table;
    int64_t num_rows, dim;
    int storage;
    const int32_t *indices;
    int64_t num_indices, ahead;
} gather;

/* Adds all these rows into registers and returns the sum of what it read, in no fixed order. Nothing is written. */
float gather_sum(gather g);
#endif
