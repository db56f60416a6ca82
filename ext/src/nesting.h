#ifndef HPCGNN_NESTING_H
#define HPCGNN_NESTING_H

#include <stdint.h>

/* Rows of a graph, gathered in units, and the cluster that each unit is in. A row is the destination of its arcs, and
 * unit_of[node] is the unit of a source, −1 if the source is not among the rows. */
typedef struct {
    int64_t num_units;
    const int64_t *indptr;         /* by node */
    const int32_t *indices;        /* nodes */
    const int64_t *node_of;        /* by row */
    const int32_t *unit_of;        /* by node */
    const int32_t *row;            /* rows of unit 0, of unit 1, ... */
    const int64_t *unit_start;     /* num_units + 1 */
    int32_t *cluster;              /* num_units; values below num_units */
    int64_t *size;                 /* num_units: rows of each cluster */
    int32_t *count;                /* num_units, zeros between calls */
    int32_t *touched;              /* num_units + 1 scratch */
} nested_rows;

/* Move each unit, in ascending order, to the cluster that most of its arcs come from, among clusters that then have at
 * most capacity rows; ties go to the lowest cluster, and a unit stays if no other has more. At most max_rounds rounds
 * of one pass over the arcs; returns the moves of the last round. Serial, so the result is the same everywhere.
 *
 * Reference: Raghavan, Albert, Kumara, Phys. Rev. E 76, 036106 (2007), label propagation, with bounded sizes as in
 * Meyerhenke, Sanders, Schulz, SEA 2014. */
int64_t propagate_clusters(nested_rows rows, int64_t capacity, int64_t max_rounds);

#endif
