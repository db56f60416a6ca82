#ifndef HPCGNN_PARTITION_H
#define HPCGNN_PARTITION_H

#include <stdint.h>

/* 1 when every arc u -> v of a CSR with ascending rows has its reverse v -> u, else 0; cursor is num_nodes scratch.
 *
 * Rows are visited in ascending order, so in a symmetric graph the entries of row u are met one after the other:
 * the k-th visit of u comes from its k-th neighbour. One pass, no transposed copy. */
int has_symmetric_rows(int64_t num_nodes, const int64_t *indptr, const int32_t *indices, int64_t *cursor);

#endif
