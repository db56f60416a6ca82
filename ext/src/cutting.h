#ifndef HPCGNN_CUTTING_H
#define HPCGNN_CUTTING_H

#include <stdint.h>

/* A part's arcs, CSR by destination, and the place of each row in the batch that is being cut: -1 between calls. */
typedef struct {
    const int64_t *indptr;
    const int32_t *indices;
    int32_t *place;
} part_arcs;

/* Write the arcs between rows of the batch, by their places in it; returns how many there are. */
int64_t arcs_inside(part_arcs part, const int64_t *rows, int64_t num_rows, int32_t *source, int32_t *target);

/* Write the CSR of the batch and, for each of its arcs, the place in the part's CSR. `far` holds num_fresh rows; append
 * all others that the batch reads, in the order in which its arcs name them. Returns the number of far rows. */
int64_t cut_rows(part_arcs part, const int64_t *rows, int64_t num_rows, int64_t num_fresh, int64_t *far,
                 int64_t *indptr, int32_t *indices, int64_t *arc);

#endif
