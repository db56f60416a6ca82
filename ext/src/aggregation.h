/* Sparse matrix times dense rows. */
#ifndef HPCGNN_AGGREGATION_H
#define HPCGNN_AGGREGATION_H
#include "storage.h"

/* A sparse matrix by rows: row v has the entries begin[v] .. end[v]-1, and a row v < num_self also the entry (v, v).
 * Entry e of column u weighs row_scale[v] * column_scale[u] * entry_scale[entry(e) * num_heads + head], where
 * entry(e) = entry_index[e], or e itself; each factor is 1 where its pointer is null, and the last one for (v, v). Heads
 * share the columns of the dense rows evenly. Tasks are ranges of rows with about equally many entries: task t is rows
 * task[t] .. task[t+1]-1. */
typedef struct {
    int64_t num_self, num_entries, num_tasks, num_heads;
    const int64_t *begin, *end, *task;
    const int32_t *indices;
    const float *row_scale, *column_scale, *entry_scale;
    const int64_t *entry_index;
} sparse_rows;

/* Far rows as a message left them: row i has its code at message[payload_offset[i]], at 1 to 8 bits, and its zero point
 * and step at message[parameter_offset[i]] (quantization.h). */
typedef struct {
    const uint8_t *message;
    const uint8_t *bit_width;
    const int64_t *payload_offset, *parameter_offset;
} packed_rows;

/* Dense rows in two tables: row u < split is row u of `near`, any other row u - split of `far`. A table may end early:
 * no entry may name a row that it lacks. Where packed.message is not null, far rows are decoded from there, entry by
 * entry. */
typedef struct {
    const void *near, *far;
    int64_t num_near, num_far, split, dim;
    int storage;
    packed_rows packed;
} dense_rows;

/* out[v] = sum of weight * row over the entries of row v, in float32, stored once; added to out[v] where accumulate.
 * Each row is summed by one thread in the order of its entries, so the result doesn't depend on the thread count. */
void aggregate_rows(sparse_rows a, dense_rows h, int accumulate, void *out);

/* The first of num_rows rows whose entries lie outside [0, num_entries), or name a column outside [0, num_columns) or
 * one of [no_row, split), which neither table has; -1 where there is none. */
int64_t first_bad_row(sparse_rows a, int64_t num_rows, int64_t num_columns, int64_t no_row, int64_t split);

/* The first of num_rows packed rows of dim columns that does not lie within a message of num_bytes, or whose width is
 * not 1, 2, 4 or 8; -1 where there is none. */
int64_t first_outside(packed_rows rows, int64_t num_rows, int64_t dim, int64_t num_bytes);
#endif
