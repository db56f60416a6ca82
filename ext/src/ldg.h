#ifndef HPCGNN_LDG_H
#define HPCGNN_LDG_H

#include <stdint.h>

/* A graph as sorted rows of neighbours. */
typedef struct {
    int64_t num_nodes;
    const int64_t *indptr;
    const int32_t *indices;
} neighbor_rows;

/* Give order[0], order[1], ... to parts by Linear Deterministic Greedy, one pass.
 *
 *     part(v) = argmax_i |N(v) ∩ P_i| (1 − |P_i| / capacity),   ties to the emptiest part, then to the lowest number
 *
 * owner must hold −1 everywhere at entry; neighbor_count and size (num_parts each) must hold zeros, and capacity must
 * be at least ceil(num_nodes / num_parts), so that some part always has room. Work: edges + nodes × parts. */
void ldg_assign(neighbor_rows graph, const int32_t *order, int32_t num_parts, double capacity,
                int64_t *neighbor_count, int64_t *size, int32_t *owner);

#endif
