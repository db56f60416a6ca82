/* Maximum over the entries of a sparse row, column by column, and the scatter of its gradient. */
#ifndef HPCGNN_MAXIMUM_H
#define HPCGNN_MAXIMUM_H
#include "storage.h"

/* Row v has the entries begin[v] .. end[v]-1, entry e the column indices[e]. Tasks are ranges of rows with about
 * equally many entries: task t is rows task[t] .. task[t+1]-1. */
typedef struct {
    int64_t num_entries, num_tasks;
    const int64_t *begin, *end, *task;
    const int32_t *indices;
} maximum_rows;

/* out[v] = largest of the rows of v's entries, argmax[v] the first row that has it; 0 and -1 without entries. NaN is
 * larger than every number. */
void maximum_forward(maximum_rows a, const void *rows, int64_t num_rows, int64_t dim, int storage, void *out,
                     int32_t *argmax);

/* out[u][j] = sum in float32 of gradient[v][j] over the entries v of row u for which argmax[v][j] is u. Equal entries
 * lie next to each other in a row, and count once. */
void maximum_backward(maximum_rows transposed, const void *gradient, const int32_t *argmax, int64_t num_rows,
                      int64_t dim, int storage, void *out);
#endif
