/* DRAM as a whole: its first state, its requests' check, and their service. */
#ifndef HPCGNN_DRAM_TIMING_H
#define HPCGNN_DRAM_TIMING_H
#include "dram_service.h"

/* Close all banks, and forget all commands and bursts. */
void close_channels(dram_state state);

/* The first bad request, or -1: its block is before that of the request before it or outside first_block..end_block-1,
 * it has no bytes or lies outside 0..capacity-1, or its kind is none of num_kinds. */
int64_t first_bad_request(request_list requests, int64_t first_block, int64_t end_block, int64_t num_kinds,
                          int64_t capacity);

/* Serve all requests in their order, ready at one clock; returns the clock at which the last data has moved. Counts
 * have one row per kind. */
int64_t serve_all(dram_state state, request_list requests, int64_t ready, int is_write, kind_counts *counts);
#endif
