/* What a buffer in front of DRAM fetches while the rows of a graph are aggregated. */
#ifndef HPCGNN_CONDENSE_TRAFFIC_H
#define HPCGNN_CONDENSE_TRAFFIC_H
#include "condense.h"

/* A fully associative buffer of `capacity` lines of line_bytes. Held lines form a ring through `newer` and `older` that
 * begins and ends at entry num_lines; the oldest leaves first. newer[line] is -1 for a line that is not held. Age
 * counts from the last use if is_lru, else from the fetch (first in, first out). */
typedef struct {
    int64_t line_bytes, capacity, num_held, num_lines;
    int is_lru;
    int32_t *newer, *older;
} line_buffer;

/* Lines in the order in which they were fetched, and whether each was for a source of another cluster. */
typedef struct {
    int64_t num_lines;
    int32_t *line;
    uint8_t *is_sparse;
} line_list;

/* Lines fetched while each row's sources are read in order, row after row; a source u lies in the bytes
 * u*row_bytes .. (u+1)*row_bytes-1. fetched[0] counts sources of the row's own cluster, fetched[1] the others. */
void fetch_lines(clustered_rows rows, int64_t row_bytes, line_buffer buffer, int64_t *fetched);

/* The same for clusters first .. last - 1, going on from the given buffer and list: lists each line; end[c - first] is
 * the number of listed lines after cluster c. */
void list_fetched_lines(clustered_rows rows, int64_t first, int64_t last, int64_t row_bytes, line_buffer *buffer,
                        line_list *list, int64_t *end);
#endif
