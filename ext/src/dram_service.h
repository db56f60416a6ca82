/* When the requests of a DRAM are served; also included by the timeline, which asks for many of them. */
#ifndef HPCGNN_DRAM_SERVICE_H
#define HPCGNN_DRAM_SERVICE_H
#include "dram_streams.h"

/* channel and window are indexed by the number of a channel. */
typedef struct {
    const dram_parameters *dram;
    dram_channel *channel;
    dram_window *window;
} dram_state;

/* Serve bursts of one request in their order; returns the clock at which the last one's column is asked for. */
static inline int64_t serve_in_order(dram_state state, int64_t first, int64_t end, int64_t ready, int is_write,
                                     int is_stream, int64_t *num_hits) {
    const dram_parameters *d = state.dram;
    int64_t last = LONG_AGO;
    for (int64_t burst = first; burst < (is_stream ? first + d->num_channels : end); burst++) {
        dram_channel *c = &state.channel[field(burst, d->channel_shift, d->num_channels)];
        *num_hits += is_stream ? serve_stream(d, c, burst, end, ready, is_write)
                               : serve_burst(d, c, burst, ready, is_write);
        last = later(last, c->last_column[is_write]);
    }
    return last;
}

/* Let bursts of one request enter; those that leave are counted by their kinds. */
static inline void serve_first_ready(dram_state state, int64_t first, int64_t end, int64_t ready, int is_write,
                                     int is_stream, uint8_t kind, kind_counts *counts) {
    const dram_parameters *d = state.dram;
    for (int64_t burst = first; burst < (is_stream ? first + d->num_channels : end); burst++) {
        const int64_t i = field(burst, d->channel_shift, d->num_channels);
        if (is_stream)
            enter_stream(d, &state.channel[i], &state.window[i], burst, end, ready, is_write, kind, counts);
        else
            enter(d, &state.channel[i], &state.window[i], burst, ready, is_write, kind, counts);
    }
}

/* Serve the bursts that wait; returns the clock at which the last column of a list is asked for. */
static inline int64_t drain_channels(dram_state state, int is_write, kind_counts *counts) {
    int64_t last = LONG_AGO;
    for (int64_t i = 0; i < state.dram->num_channels; i++) {
        if (state.window[i].num_waiting == 0) continue;
        drain(state.dram, &state.channel[i], &state.window[i], is_write, counts);
        last = later(last, state.channel[i].last_column[is_write]);
    }
    return last;
}

/* Serve requests from..to-1, ready at one clock, and count them by kind; the clock at which the last data has moved. */
static inline int64_t serve_requests(dram_state state, const request_list *requests, int64_t from, int64_t to,
                                     int64_t ready, int is_write, kind_counts *counts) {
    const dram_parameters *d = state.dram;
    int64_t last = LONG_AGO;
    for (int64_t i = from; i < to; i++) {
        const int64_t begin = requests->address[i], end = begin + requests->num_bytes[i];
        const int64_t first = begin >> d->burst_shift, stop = ((end - 1) >> d->burst_shift) + 1;
        const int is_stream = d->run_length > 1 && stop - first > 2 * d->num_channels * d->run_groups;
        const uint8_t kind = requests->kind[i];
        int64_t *count = counts[kind];
        if (d->first_ready)
            serve_first_ready(state, first, stop, ready, is_write, is_stream, kind, counts);
        else
            last = later(last, serve_in_order(state, first, stop, ready, is_write, is_stream, &count[ROW_HITS]));
        count[REQUESTED_BYTES] += end - begin;
        count[BURSTS] += stop - first;
    }
    if (d->first_ready) last = drain_channels(state, is_write, counts);
    return last + d->latency[is_write];
}
#endif
