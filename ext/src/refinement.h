#ifndef HPCGNN_REFINEMENT_H
#define HPCGNN_REFINEMENT_H

#include <stdint.h>

/* How many neighbours of a node a part has. */
typedef struct {
    int32_t part;
    int32_t count;
} part_count;

/* An undirected graph, the owner of every node, and what is kept of both while nodes move between parts.
 *
 * volume = sum over nodes v of |{p : p has a neighbour of v, p != owner[v]}|, the rows that cross in an exchange.
 *
 * Row v of `near` has room for min(degree, num_parts) entries from near_start[v] on. Where that is the degree, the
 * first near_length[v] are the parts of v's neighbours, ascending; where it is num_parts, entry p is part p, and its
 * count may be 0. A part's load is the sum of its nodes' weights, of num_weights kinds; limits say how much
 * of each kind a part may have. */
typedef struct {
    int64_t num_nodes;
    int32_t num_parts;
    int32_t num_weights;
    const int64_t *indptr;
    const int32_t *indices;
    const int64_t *weight;       /* num_nodes × num_weights */
    int32_t *owner;
    const int64_t *near_start;   /* num_nodes */
    int32_t *near_length;        /* num_nodes */
    part_count *near;
    int64_t *size;               /* num_parts: nodes of each part; none is ever emptied */
    int64_t *load;               /* num_parts × num_weights */
    int64_t *limit;              /* num_weights */
    int32_t *noted;              /* num_parts scratch */
    uint8_t *is_noted;           /* num_parts, zeros between calls */
    int32_t *served;             /* num_parts, zeros between calls */
    int32_t *queue;              /* 2 × num_nodes scratch */
    uint8_t *is_queued;          /* num_nodes, zeros between calls */
    double *key;                 /* num_nodes scratch */
    int64_t volume;
} part_neighbors;

/* Fill near, size, load and volume, zeros before, from owner. Work: edges × parts of a node's neighbours. */
void count_part_neighbors(part_neighbors *state);

/* Edges whose ends lie in different parts. */
int64_t count_cut_edges(const part_neighbors *state);

/* Move boundary nodes to the part that lowers the volume most within the limits, until no move does, but for at most
 * max_rounds rounds over the nodes whose neighbourhood changed. A move that keeps the volume is made if it evens out
 * the loads. Serial, in ascending order of nodes, so the result is the same everywhere. Returns the moves. */
int64_t lower_volume(part_neighbors *state, int64_t max_rounds);

/* Move nodes out of parts that exceed a limit, first those that raise the volume least per excess removed. The
 *
 *     excess = sum over parts and kinds of max(0, load / limit − 1)
 *
 * falls with every move; it may end above 0 where no single move lowers it. Nodes heavier than `largest` times a limit
 * stay. Returns the moves. */
int64_t relieve_parts(part_neighbors *state, int64_t max_rounds, double largest);

#endif
