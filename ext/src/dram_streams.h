/* Serves many bursts of a stream at a time where a first-ready channel would serve them in their order.
 *
 * A stream is steady if the window holds only its last bursts, all of open rows, and each can have its column in its
 * turn, `spacing` after the one before, so that no younger burst is ready before it. It stays steady as long as the
 * next rows are opened in time; each run needs one row per bank group. */
#ifndef HPCGNN_DRAM_STREAMS_H
#define HPCGNN_DRAM_STREAMS_H
#include "dram_window.h"

/* Bursts of a stream: `burst` is the next one to enter, after the column at `before`; num_entered have entered since it
 * became steady. opened_in_window: whether each burst that waited then opened its row; opened_in_run: the same for the
 * first bursts of the last run, which began at `run`. */
typedef struct {
    int64_t burst, before, num_entered, num_opened, run;
    uint8_t opened_in_window[MAX_QUEUE], opened_in_run[MAX_GROUPS];
} steady_stream;

/* All groups of a run are in the window at once, with no more than one run before it, whose banks are others. */
static inline int may_be_steady(const dram_parameters *d) {
    const int is_long = d->queue_depth > d->run_groups && d->run_length >= d->queue_depth + d->run_groups;
    const int banks_change = d->banks_per_group > 1 && d->run_length * d->num_channels == (int64_t)1 << d->bank_shift;
    return is_long && banks_change && d->run_spacing == d->spacing;
}

/* The last command was a column, and the window's bursts are the last queue_depth - 1 before `burst`. */
static inline int is_steady(const dram_parameters *d, dram_channel *c, const dram_window *w, int64_t burst,
                            int is_write) {
    const int64_t oldest = w->num_entered - d->queue_depth + 1, before = c->last_column[is_write];
    if (w->miss_banks) return 0;
    for (uint64_t left = w->hit_banks; left; left &= left - 1) {
        const int64_t bank = __builtin_ctzll(left);
        if (w->burst[w->first[bank]].number < oldest) return 0;
        if (c->bank[bank].column[is_write] > before + d->spacing) return 0;
    }
    for (int64_t k = 0; k < d->run_groups; k++) {
        const burst_plan plan = place_burst(d, c, burst + (k + 1 - d->queue_depth) * d->num_channels);
        if (time_of_column(d, c, plan.group, LONG_AGO, is_write) > before + (k + 1) * d->spacing) return 0;
    }
    return 1;
}

/* Open the rows of the run that begins; returns 0 if a row might delay a column, be opened before an older row, or not
 * be open when num_bursts have entered. */
static inline int open_run(const dram_parameters *d, dram_channel *c, steady_stream *s, int64_t num_bursts,
                           int is_write) {
    burst_plan plans[MAX_GROUPS];
    int64_t recent[MAX_GROUPS + 4], ready = LONG_AGO, last = c->last_activate;
    int num_opened = 0;
    if (num_bursts < d->run_groups) return 0;
    for (int i = 0; i < 4; i++) recent[i] = c->activates[(c->activate_turn + i) & 3];
    for (int64_t k = 0; k < d->run_groups; k++) {
        burst_plan plan = place_burst(d, c, s->burst + k * d->num_channels);
        plan.is_hit = plan.bank->open_row == plan.row;
        if (plan.is_hit && plan.bank->column[is_write] > s->before) return 0;
        if (!plan.is_hit) {
            const int64_t from = time_of_bank(d, c, plan.bank, plan.group, s->before + k * d->spacing);
            if (from < ready) return 0;
            ready = from;
            last = later(later(from, last + d->activate_spacing), recent[num_opened] + d->four_activates);
            const int64_t column = s->before + (d->queue_depth + k) * d->spacing;
            if (last >= s->before + num_bursts * d->spacing) return 0;
            if (last + d->activate_to_column[is_write] > earlier(column, c->refresh_due - 1)) return 0;
            plan.activate = recent[4 + num_opened++] = last;
        }
        plans[k] = plan;
    }
    for (int64_t k = 0; k < d->run_groups; k++) {
        s->opened_in_run[k] = !plans[k].is_hit;
        if (!plans[k].is_hit) note_activate(d, c, &plans[k]);
    }
    s->num_opened += num_opened;
    s->run = s->num_entered;
    return 1;
}

/* Note columns number from..to-1 after `before`; column 0 is that of the oldest burst in the window. */
static inline void note_columns(const dram_parameters *d, dram_channel *c, const steady_stream *s, int64_t from,
                                int64_t to, int is_write) {
    for (int64_t i = later(0, from); i < to; i++) {
        burst_plan plan = place_burst(d, c, s->burst + (i + 1 - d->queue_depth) * d->num_channels);
        plan.column = s->before + (i + 1) * d->spacing;
        note_column(d, c, &plan, is_write);
    }
}

/* Let bursts enter, up to the end of a run, while as many others have their columns; returns how many. */
static inline int64_t serve_part_of_run(const dram_parameters *d, dram_channel *c, steady_stream *s, int64_t end,
                                        int is_write) {
    const int64_t in_run = s->burst / d->num_channels % d->run_length;
    const int64_t in_time = (c->refresh_due - 1 - s->before) / d->spacing;
    const int64_t left = earlier(d->run_length - in_run, (end - s->burst + d->num_channels - 1) / d->num_channels);
    const int64_t num_bursts = later(0, earlier(left, in_time));
    if (in_run == 0 ? !open_run(d, c, s, num_bursts, is_write) : in_run < d->run_groups) return 0;
    const int64_t end_before = earlier(d->queue_depth - 1 - in_run, num_bursts);     /* of columns of the last run */
    note_columns(d, c, s, end_before - d->run_groups, end_before, is_write);
    note_columns(d, c, s, later(end_before, num_bursts - d->run_groups), num_bursts, is_write);
    s->before += num_bursts * d->spacing;
    s->burst += num_bursts * d->num_channels;
    s->num_entered += num_bursts;
    return num_bursts;
}

/* Take all bursts out of the window. */
static inline void begin_steady(const dram_parameters *d, dram_window *w, steady_stream *s) {
    const int64_t oldest = w->num_entered - d->queue_depth + 1;
    for (uint64_t left = w->hit_banks; left; left &= left - 1) {
        const int64_t bank = __builtin_ctzll(left);
        for (int16_t i = w->first[bank]; i >= 0; i = w->burst[i].next) {
            const uint8_t is_opened = w->burst[i].is_opened;
            s->opened_in_window[w->burst[i].number - oldest] = is_opened;
            s->num_opened += is_opened;
        }
        w->burst[w->last[bank]].next = (int16_t)w->free;
        w->free = w->first[bank];
        w->first[bank] = w->last[bank] = w->hit[bank] = -1;
    }
    w->hit_banks = 0;
    w->num_waiting = 0;
    w->column.is_known = w->activate.is_known = 0;
}

/* Put the last bursts into the window; returns how many of those that left it found their row open. When a burst
 * entered does not matter any more. */
static inline int64_t end_steady(const dram_parameters *d, dram_channel *c, dram_window *w, const steady_stream *s,
                                 int is_write, uint8_t kind) {
    const int64_t num_before = d->queue_depth - 1;
    int64_t num_misses = s->num_opened;
    w->num_entered += s->num_entered - num_before;
    for (int64_t i = s->num_entered; i < s->num_entered + num_before; i++) {
        const int64_t in_run = i - num_before - s->run;
        const int is_of_run = s->run >= 0 && in_run >= 0 && in_run < d->run_groups;
        const uint8_t is_opened = i < num_before ? s->opened_in_window[i] : is_of_run ? s->opened_in_run[in_run] : 0;
        const burst_plan plan = place_burst(d, c, s->burst + (i - num_before - s->num_entered) * d->num_channels);
        const int64_t bank = plan.bank - c->bank;
        const int16_t slot =
            append(w, bank, (waiting_burst){plan.row, s->before, w->num_entered++, -1, kind, is_opened});
        if (w->hit[bank] < 0) make_hit(d, c, w, bank, slot, is_write);
        num_misses -= is_opened;
    }
    return s->num_entered - num_misses;
}

static inline void note_steady_columns(const dram_parameters *d, dram_channel *c, const steady_stream *s) {
    const int64_t forgotten = later(0, s->num_entered - d->queue_depth);
    c->turn = (c->turn + forgotten) % d->queue_depth;
    for (int64_t i = forgotten + 1; i <= s->num_entered; i++)
        note_issued(d, c, s->before + (i - s->num_entered) * d->spacing);
}

/* Let bursts of a steady stream enter, from `burst` on, as long as it is steady; returns how many. */
static inline int64_t serve_steady(const dram_parameters *d, dram_channel *c, dram_window *w, int64_t burst,
                                   int64_t end, int is_write, uint8_t kind, kind_counts *counts) {
    steady_stream s;
    s.burst = burst;
    s.before = c->last_column[is_write];
    s.num_entered = s.num_opened = 0;
    s.run = -1;
    int64_t num_more = serve_part_of_run(d, c, &s, end, is_write);
    if (num_more == 0) return 0;
    begin_steady(d, w, &s);
    while (num_more && s.burst < end) num_more = serve_part_of_run(d, c, &s, end, is_write);
    note_steady_columns(d, c, &s);
    counts[kind][ROW_HITS] += end_steady(d, c, w, &s, is_write, kind);
    return s.num_entered;
}

/* Serve the bursts first, first + num_channels, ... before `end`, all of one channel and of one request. */
static inline void enter_stream(const dram_parameters *d, dram_channel *c, dram_window *w, int64_t first, int64_t end,
                                int64_t ready, int is_write, uint8_t kind, kind_counts *counts) {
    const int64_t full = first + d->queue_depth * d->num_channels;
    const int may_skip = may_be_steady(d);
    for (int64_t burst = first; burst < end; burst += d->num_channels) {
        if (may_skip && burst >= full && w->num_waiting == d->queue_depth) {
            make_room(d, c, w, is_write, counts);
            if (is_steady(d, c, w, burst, is_write))
                burst += serve_steady(d, c, w, burst, end, is_write, kind, counts) * d->num_channels;
            if (burst >= end) break;
        }
        enter(d, c, w, burst, ready, is_write, kind, counts);
    }
}
#endif
