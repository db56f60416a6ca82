/* Condensed regions: the rows that a cluster of rows needs of other clusters, each once, in order. */
#ifndef HPCGNN_CONDENSE_H
#define HPCGNN_CONDENSE_H
#include <stdint.h>

/* A graph whose rows are laid out cluster after cluster: cluster c has the rows start[c] .. start[c+1]-1, and row v the
 * sources indices[indptr[v]] .. indices[indptr[v+1]-1]. */
typedef struct {
    int64_t num_clusters;
    const int64_t *start, *indptr;
    const int32_t *indices;
} clustered_rows;

/* The region of cluster c is copied_row[region[c]] .. copied_row[region[c+1]-1]: the sources of its rows that lie in
 * other clusters, ascending, each once (the eID lists of MEGA, Algorithm 1). count_copies fills `region`, which gives
 * the size of copied_row; list_copies fills the rest. place[e] is the position in copied_row that serves entry e, or -1
 * if the source lies in the cluster itself. `last` is scratch, one entry per row, -1 at entry to either function. */
void count_copies(clustered_rows rows, int64_t *region, int32_t *last);
void list_copies(clustered_rows rows, const int64_t *region, int32_t *last, int32_t *copied_row, int32_t *place);
#endif
