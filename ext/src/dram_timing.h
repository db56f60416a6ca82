/* DRAM as a whole: its first state, its requests' check, and their service. */
#ifndef HPCGNN_DRAM_TIMING_H
#define HPCGNN_DRAM_TIMING_H
#include "dram_service.h"

/* Close all banks, and forget all commands and bursts. */
void close_channels(dram_state state);

/* The first request whose block is before the last one's, or outside first_block..end_block-1, that has no bytes or
 * lies outside 0..capacity-1, or whose kind is none of num_kinds; -1 where there is none. */
int64_t first_bad_request(request_list requests, int64_t first_block, int64_t end_block, int64_t num_kinds,
                          int64_t capacity);

/* Serve all requests in their order, ready at one clock; the clock at which the last data has moved. Counts have a row
 * for each kind. */
int64_t serve_all(dram_state state, request_list requests, int64_t ready, int is_write, kind_counts *counts);
#endif
