#include "timeline.h"

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Serve the requests of one block, from *next on; returns the cycle at which they are done, 0 if there are none. */
static int64_t serve_block(pass_times *pass, const timed_dram *dram, const request_list *requests, int64_t *next,
                           int64_t block, int64_t ready, int is_write) {
    const int64_t from = *next;
    while (*next < requests->num_requests && requests->block[*next] == block) ++*next;
    if (*next == from) return 0;
    const clock_ratio ratio = dram->ratio;
    pass->arrived = later(ready, pass->arrived);
    const int64_t clock = divide_up(pass->arrived * ratio.clocks, ratio.cycles);
    const int64_t done_clock = serve_requests(dram->dram, requests, from, *next, clock, is_write,
                                              dram->counts[is_write]);
    const int64_t done = divide_up(done_clock * ratio.cycles, ratio.clocks);
    pass->dram_busy += later(0, done - later(pass->arrived, pass->served));
    pass->served = later(done, pass->served);
    return done;
}

static void shift(int64_t *pair, int64_t last) {
    pair[1] = pair[0];
    pair[0] = last;
}

/* The stage waits for the later of its input and its output; if both are equally late, the wait counts as input's. */
static void start_stage(stage_times *stage, int64_t input, int input_cause, int64_t output, int output_cause,
                        int64_t cycles) {
    const int64_t start = later(stage->end[0], later(input, output));
    stage->stalled[input >= output ? input_cause : output_cause] += start - stage->end[0];
    stage->busy += cycles;
    shift(stage->end, start + cycles);
}

/* Run block i through all stages; end[1] of the next stage is block i-2's, as that stage has not had block i yet. */
static void compute_block(pass_times *pass, const int64_t *cycles, int64_t reads_done) {
    int64_t input = reads_done, ideal_input = 0;
    const int64_t last = pass->num_stages - 1;
    for (int64_t s = 0; s <= last; s++) {
        stage_times *stage = &pass->stage[s];
        const int64_t output = s == last ? pass->written : stage[1].end[1];
        const int64_t ideal_output = s == last ? 0 : stage[1].ideal_end[1];
        start_stage(stage, input, s ? UPSTREAM : DRAM_READS, output, s == last ? DRAM_WRITES : DOWNSTREAM, cycles[s]);
        shift(stage->ideal_end, later(stage->ideal_end[0], later(ideal_input, ideal_output)) + cycles[s]);
        input = stage->end[0];
        ideal_input = stage->ideal_end[0];
    }
}

void run_blocks(pass_times *pass, timed_dram dram, int64_t num_blocks, const int64_t *cycles, request_list reads,
                request_list writes) {
    int64_t next_read = 0, next_write = 0;
    for (int64_t i = 0; i < num_blocks; i++) {
        const int64_t freed = pass->stage[pass->buffered_until].end[1];
        const int64_t read = serve_block(pass, &dram, &reads, &next_read, i, freed, 0);
        const int64_t left = pass->stage[pass->num_stages - 1].end[0];
        const int64_t written = serve_block(pass, &dram, &writes, &next_write, i - 1, left, 1);
        compute_block(pass, cycles + i * pass->num_stages, read);
        pass->written = written;
    }
}

int64_t finish_pass(pass_times *pass, timed_dram dram, request_list writes) {
    int64_t next = 0, end = pass->stage[pass->num_stages - 1].end[0];
    serve_block(pass, &dram, &writes, &next, -1, end, 1);
    return later(end, pass->served);
}
