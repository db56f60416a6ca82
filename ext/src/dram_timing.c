#include "dram_timing.h"

static void close_channel(const dram_parameters *d, dram_channel *c) {
    const dram_bank closed = {-1, LONG_AGO, LONG_AGO, {LONG_AGO, LONG_AGO}};
    for (int i = 0; i < MAX_BANKS; i++) c->bank[i] = closed;
    for (int i = 0; i < MAX_QUEUE; i++) c->issued[i] = LONG_AGO;
    for (int i = 0; i < 4; i++) c->activates[i] = LONG_AGO;
    for (int i = 0; i < MAX_GROUPS; i++)
        c->group_activate[i] = c->group_column[i][0] = c->group_column[i][1] = LONG_AGO;
    c->last_activate = c->last_column[0] = c->last_column[1] = c->refreshed = LONG_AGO;
    c->turn = c->activate_turn = 0;
    c->refresh_due = d->refresh_interval;
}

static void empty_window(dram_window *w) {
    for (int i = 0; i < MAX_BANKS; i++) w->first[i] = w->last[i] = w->hit[i] = -1;
    for (int i = 0; i < MAX_QUEUE; i++) w->burst[i] = (waiting_burst){.next = (int16_t)(i + 1)};
    w->num_waiting = w->num_entered = w->free = 0;
    w->hit_banks = w->miss_banks = 0;
    w->column.is_known = w->activate.is_known = 0;
}

void close_channels(dram_state state) {
    for (int64_t i = 0; i < state.dram->num_channels; i++) {
        close_channel(state.dram, &state.channel[i]);
        empty_window(&state.window[i]);
    }
}

int64_t first_bad_request(request_list requests, int64_t first_block, int64_t end_block, int64_t num_kinds,
                          int64_t capacity) {
    int64_t least = first_block;
    for (int64_t i = 0; i < requests.num_requests; i++) {
        const int64_t block = requests.block[i], address = requests.address[i], num_bytes = requests.num_bytes[i];
        if (block < least || block >= end_block || requests.kind[i] >= num_kinds) return i;
        if (address < 0 || num_bytes < 1 || address >= capacity || num_bytes > capacity - address) return i;
        least = block;
    }
    return -1;
}

int64_t serve_all(dram_state state, request_list requests, int64_t ready, int is_write,
                  kind_counts *counts) {
    return serve_requests(state, &requests, 0, requests.num_requests, ready, is_write, counts);
}
