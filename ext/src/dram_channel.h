/* A channel of DRAM: which commands its timings allow, refreshes, and bursts that are served in their order. */
#ifndef HPCGNN_DRAM_CHANNEL_H
#define HPCGNN_DRAM_CHANNEL_H
#include <stdint.h>

enum { MAX_BANKS = 64, MAX_GROUPS = 16, MAX_QUEUE = 128, NUM_COUNTS = 3 };
enum { REQUESTED_BYTES, BURSTS, ROW_HITS };
#define LONG_AGO (-((int64_t)1 << 40))

/* Of one kind of requests. */
typedef int64_t kind_counts[NUM_COUNTS];

/* Shifts and sizes (powers of two) split the number of a burst, its address >> burst_shift; times are clocks. Pairs are
 * for reads and writes. run_length successive bursts of a channel lie in the same rows, in run_groups bank groups by
 * turns, and are run_spacing clocks apart once these rows are open; run_length is 1 if that does not hold. */
typedef struct {
    int64_t num_channels, num_groups, banks_per_group, num_rows;
    int64_t burst_shift, channel_shift, group_shift, bank_shift, row_shift;
    int64_t run_length, run_groups, run_spacing, queue_depth, first_ready;
    int64_t latency[2], activate_to_column[2], column_to_precharge[2], turnaround[2], turnaround_in_group[2];
    int64_t spacing, spacing_in_group, activate_spacing, activate_spacing_in_group, four_activates;
    int64_t activate_to_precharge, activate_to_activate, precharge_to_activate, refresh_interval, refresh_time;
} dram_parameters;

/* open_row is -1 for a closed bank; the others are the first clocks at which a command may be given. For a closed bank,
 * precharge is the clock at which it was closed. */
typedef struct {
    int64_t open_row, precharge, activate, column[2];
} dram_bank;

/* Clocks of the last commands; `issued` is a ring of the last queue_depth columns' clocks, the oldest at `turn`. */
typedef struct {
    int64_t last_activate, last_column[2];
    int64_t group_activate[MAX_GROUPS], group_column[MAX_GROUPS][2];
    int64_t activates[4], activate_turn, issued[MAX_QUEUE], turn, refreshed, refresh_due;
    dram_bank bank[MAX_BANKS];
} dram_channel;

typedef struct {
    int64_t num_requests;
    const int32_t *block;
    const int64_t *address, *num_bytes;
    const uint8_t *kind;
} request_list;

/* The commands that one burst needs. */
typedef struct {
    dram_bank *bank;
    int64_t group, row, activate, column;
    int is_hit;
} burst_plan;

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t field(int64_t burst, int64_t shift, int64_t size) { return burst >> shift & (size - 1); }

static inline burst_plan place_burst(const dram_parameters *d, dram_channel *c, int64_t burst) {
    burst_plan plan = {.group = field(burst, d->group_shift, d->num_groups),
                       .row = field(burst, d->row_shift, d->num_rows)};
    plan.bank = &c->bank[plan.group * d->banks_per_group + field(burst, d->bank_shift, d->banks_per_group)];
    return plan;
}

/* The first clock at which its bank and its group allow to activate a row; a bank that is open is closed before. */
static inline int64_t time_of_bank(const dram_parameters *d, const dram_channel *c, const dram_bank *bank,
                                   int64_t group, int64_t entered) {
    int64_t t = later(entered, c->refreshed);
    if (bank->open_row >= 0) t = later(t, later(entered, bank->precharge) + d->precharge_to_activate);
    t = later(t, bank->activate);
    return later(t, c->group_activate[group] + d->activate_spacing_in_group);
}

/* The first clock that the channel allows too, after all earlier activations. */
static inline int64_t time_to_activate(const dram_parameters *d, const dram_channel *c, const dram_bank *bank,
                                       int64_t group, int64_t entered) {
    const int64_t t = later(time_of_bank(d, c, bank, group, entered), c->last_activate + d->activate_spacing);
    return later(t, c->activates[c->activate_turn] + d->four_activates);
}

/* The first clock that allows a column of an open row in the group, after all earlier columns. */
static inline int64_t time_of_column(const dram_parameters *d, const dram_channel *c, int64_t group, int64_t entered,
                                     int is_write) {
    const int64_t *in_group = c->group_column[group];
    int64_t t = later(entered, c->last_column[is_write] + d->spacing);
    t = later(t, c->last_column[!is_write] + d->turnaround[is_write]);
    t = later(t, in_group[is_write] + d->spacing_in_group);
    return later(t, in_group[!is_write] + d->turnaround_in_group[is_write]);
}

/* Rows are activated, and columns read and written, in the order of their bursts. */
static inline void plan_commands(const dram_parameters *d, const dram_channel *c, burst_plan *plan, int64_t entered,
                                 int is_write) {
    const int64_t t = time_of_column(d, c, plan->group, entered, is_write);
    plan->is_hit = plan->bank->open_row == plan->row;
    if (plan->is_hit) {
        plan->column = later(t, plan->bank->column[is_write]);
    } else {
        plan->activate = time_to_activate(d, c, plan->bank, plan->group, entered);
        plan->column = later(t, plan->activate + d->activate_to_column[is_write]);
    }
}

/* Close and refresh all banks. Of the refreshes that fall due while nothing is requested, only the last one counts. */
static inline void refresh(const dram_parameters *d, dram_channel *c, int64_t entered) {
    int64_t begin = c->refresh_due;
    int is_open = 0;
    for (int64_t i = 0; i < d->num_groups * d->banks_per_group; i++) {
        dram_bank *bank = &c->bank[i];
        if (bank->open_row >= 0) {
            bank->precharge = later(bank->precharge, c->refresh_due);
            bank->open_row = -1;
            is_open = 1;
        }
        begin = later(begin, bank->precharge + d->precharge_to_activate);
    }
    if (!is_open && entered > begin) {
        begin += (entered - begin) / d->refresh_interval * d->refresh_interval;
        c->refresh_due = begin;
    }
    c->refreshed = begin + d->refresh_time;
    c->refresh_due += d->refresh_interval;
}

static inline void note_activate(const dram_parameters *d, dram_channel *c, const burst_plan *plan) {
    const int64_t t = plan->activate;
    dram_bank *bank = plan->bank;
    bank->open_row = plan->row;
    bank->precharge = t + d->activate_to_precharge;
    bank->activate = t + d->activate_to_activate;
    bank->column[0] = t + d->activate_to_column[0];
    bank->column[1] = t + d->activate_to_column[1];
    c->last_activate = c->group_activate[plan->group] = c->activates[c->activate_turn] = t;
    c->activate_turn = (c->activate_turn + 1) & 3;
}

static inline void note_column(const dram_parameters *d, dram_channel *c, const burst_plan *plan, int is_write) {
    c->last_column[is_write] = c->group_column[plan->group][is_write] = plan->column;
    plan->bank->precharge = later(plan->bank->precharge, plan->column + d->column_to_precharge[is_write]);
}

static inline void note_issued(const dram_parameters *d, dram_channel *c, int64_t t) {
    c->issued[c->turn] = t;
    c->turn = c->turn + 1 == d->queue_depth ? 0 : c->turn + 1;
}

/* Serve one burst; returns whether its row was open. A burst enters the queue when it is ready and the burst
 * queue_depth before it has left. Its row is opened only if its column comes before the next refresh. */
static inline int serve_burst(const dram_parameters *d, dram_channel *c, int64_t burst, int64_t ready, int is_write) {
    const int64_t entered = later(ready, c->issued[c->turn]);
    burst_plan plan = place_burst(d, c, burst);
    plan_commands(d, c, &plan, entered, is_write);
    while (plan.column >= c->refresh_due) {
        refresh(d, c, entered);
        plan_commands(d, c, &plan, entered, is_write);
    }
    if (!plan.is_hit) note_activate(d, c, &plan);
    note_column(d, c, &plan, is_write);
    note_issued(d, c, plan.column);
    return plan.is_hit;
}

/* Serve num_bursts successive bursts of a channel, from `burst` on, all in open rows that each bank group has used. */
static inline void serve_open_run(const dram_parameters *d, dram_channel *c, int64_t burst, int64_t num_bursts,
                                  int is_write) {
    const int64_t before = c->last_column[is_write];
    for (int64_t i = later(0, num_bursts - d->run_groups); i < num_bursts; i++) {
        burst_plan plan = place_burst(d, c, burst + i * d->num_channels);
        plan.column = before + (i + 1) * d->run_spacing;
        note_column(d, c, &plan, is_write);
    }
    const int64_t forgotten = later(0, num_bursts - d->queue_depth);
    c->turn = (c->turn + forgotten) % d->queue_depth;
    for (int64_t i = forgotten; i < num_bursts; i++)
        note_issued(d, c, before + (i + 1) * d->run_spacing);
}

/* Serve the bursts first, first + num_channels, ... before `end`, all of one channel; returns how many rows were open.
 * Once each bank group has had a burst of the rows, bursts wait only for the one before, until a refresh is due. */
static inline int64_t serve_stream(const dram_parameters *d, dram_channel *c, int64_t first, int64_t end,
                                   int64_t ready, int is_write) {
    const int64_t channels = d->num_channels;
    int64_t num_hits = 0, num_warm = 0;
    for (int64_t burst = first; burst < end;) {
        const int64_t index = burst / channels, in_run = index % d->run_length;
        if (in_run == 0) num_warm = 0;
        const int64_t in_time = (c->refresh_due - 1 - c->last_column[is_write]) / d->run_spacing;
        const int64_t left = earlier(d->run_length - in_run, (end - burst + channels - 1) / channels);
        const int64_t num_bursts = num_warm < d->run_groups ? 0 : earlier(left, in_time);
        if (num_bursts > 0) {
            serve_open_run(d, c, burst, num_bursts, is_write);
            num_hits += num_bursts;
            burst += num_bursts * channels;
        } else {
            const int is_hit = serve_burst(d, c, burst, ready, is_write);
            num_warm = is_hit ? num_warm + 1 : 1;
            num_hits += is_hit;
            burst += channels;
        }
    }
    return num_hits;
}

#endif
