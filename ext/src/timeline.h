/* How the blocks of a pass follow each other through stages of units, and when DRAM serves their requests. */
#ifndef HPCGNN_TIMELINE_H
#define HPCGNN_TIMELINE_H
#include "dram_service.h"

/* What a stage waits for: reads (the first stage) or the stage before; writes (the last stage) or the next stage. */
enum { DRAM_READS, UPSTREAM, DOWNSTREAM, DRAM_WRITES, NUM_CAUSES, MAX_STAGES = 16 };

/* Cycles. Pairs are of the last block and of the one before it; ideal_end is the end if DRAM answered at once. */
typedef struct {
    int64_t end[2], ideal_end[2], busy, stalled[NUM_CAUSES];
} stage_times;

/* Of the blocks of a pass so far: `arrived` is when the last request was made, `served` when the last data moved,
 * `written` when the writes that were made last were done. */
typedef struct {
    int64_t begin, num_stages, buffered_until, arrived, served, dram_busy, written;
    stage_times stage[MAX_STAGES];
} pass_times;

/* cycles = clocks of DRAM * cycles / clocks, rounded up. */
typedef struct {
    int64_t cycles, clocks;
} clock_ratio;

typedef struct {
    dram_state dram;
    clock_ratio ratio;
    kind_counts *counts[2];
} timed_dram;

/* Time num_blocks more blocks. cycles are (num_blocks, num_stages); reads are of the blocks 0..num_blocks-1, writes of
 * the blocks -1..num_blocks-2, where -1 is the last block of the call before. For each block i, in this order:
 *
 *     reads(i)      are made when block i-2 has left the stage buffered_until, and all requests before them are made
 *     writes(i-1)   are made when block i-1 has left the last stage, and all requests before them are made
 *     start[s][i] = max(end[s][i-1], end[s-1][i] or the reads of i, end[s+1][i-2] or the writes of i-2) */
void run_blocks(pass_times *pass, timed_dram dram, int64_t num_blocks, const int64_t *cycles, request_list reads,
                request_list writes);

/* Serve the writes of the last block, and end the pass; the cycle at which all is written. */
int64_t finish_pass(pass_times *pass, timed_dram dram, request_list writes);
#endif
