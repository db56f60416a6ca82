/* A first-ready, first-come-first-served channel: bursts wait in a window, and each command goes to the burst that may
 * have it earliest, the oldest among equals. Clocks between commands are skipped, since nothing happens there. All
 * commands of a list of requests are chosen before any of the next list; a command of the next list comes after all
 * commands of its sort in this list, but maybe before commands of other sorts. */
#ifndef HPCGNN_DRAM_WINDOW_H
#define HPCGNN_DRAM_WINDOW_H
#include "dram_channel.h"

#define NEVER ((int64_t)1 << 61)

/* `number` counts the bursts of a channel; `next` is the burst of the bank that came after this one, -1 is none. */
typedef struct {
    int64_t row, entered, number;
    int16_t next;
    uint8_t kind, is_opened;
} waiting_burst;

/* The next command of one sort: when, for which burst (its number), and for which bank. */
typedef struct {
    int64_t clock, number, bank, is_known;
} next_command;

/* Empty between lists. Per bank: the first and the last burst that wait for it, and the first burst of the open row; -1
 * is none. Sets of banks, one bit per bank: hit_banks have bursts of the open row, miss_banks have only others. A hit
 * bank's next command is a column, a miss bank's an activation, for the burst `number`, allowed from `ready` on. */
typedef struct {
    int64_t num_waiting, num_entered;
    uint64_t hit_banks, miss_banks;
    next_command column, activate;
    int64_t ready[MAX_BANKS], number[MAX_BANKS];
    int16_t first[MAX_BANKS], last[MAX_BANKS], hit[MAX_BANKS];
    int64_t free;
    waiting_burst burst[MAX_QUEUE];
} dram_window;

static inline int64_t group_of(const dram_parameters *d, int64_t bank) {
    return bank >> __builtin_ctzll((uint64_t)d->banks_per_group);
}

/* An open row that no burst waits for is closed when a burst of another row waits. */
static inline int64_t time_to_precharge(const dram_channel *c, const dram_window *w, int64_t bank) {
    return later(c->bank[bank].precharge, w->burst[w->first[bank]].entered);
}

/* Clocks before which a channel, and its bank groups, allow no command of a sort. */
typedef struct {
    int64_t of_channel, of_group[MAX_GROUPS];
} first_clocks;

static inline first_clocks first_columns(const dram_parameters *d, const dram_channel *c, int is_write) {
    first_clocks first;
    first.of_channel =
        later(c->last_column[is_write] + d->spacing, c->last_column[!is_write] + d->turnaround[is_write]);
    for (int64_t g = 0; g < d->num_groups; g++)
        first.of_group[g] = later(c->group_column[g][is_write] + d->spacing_in_group,
                                  c->group_column[g][!is_write] + d->turnaround_in_group[is_write]);
    return first;
}

static inline first_clocks first_activates(const dram_parameters *d, const dram_channel *c) {
    first_clocks first;
    first.of_channel =
        later(c->last_activate + d->activate_spacing, c->activates[c->activate_turn] + d->four_activates);
    for (int64_t g = 0; g < d->num_groups; g++)
        first.of_group[g] = c->group_activate[g] + d->activate_spacing_in_group;
    return first;
}

/* The earliest of `best` and the banks' commands; at the same clock, the command of the oldest burst. */
static inline next_command earliest(const dram_parameters *d, const dram_window *w, uint64_t banks, first_clocks first,
                                    next_command best) {
    const int bits = __builtin_ctzll((uint64_t)d->banks_per_group);
    for (uint64_t left = banks; left; left &= left - 1) {
        const int64_t bank = __builtin_ctzll(left), number = w->number[bank];
        const int64_t clock = later(w->ready[bank], later(first.of_channel, first.of_group[bank >> bits]));
        const int is_better = (clock < best.clock) | ((clock == best.clock) & (number < best.number));
        best.clock = is_better ? clock : best.clock;
        best.number = is_better ? number : best.number;
        best.bank = is_better ? bank : best.bank;
    }
    return best;
}

static inline void choose_commands(const dram_parameters *d, const dram_channel *c, dram_window *w, int is_write) {
    const next_command none = {NEVER, NEVER, -1, 1};
    if (!w->column.is_known)
        w->column = w->hit_banks ? earliest(d, w, w->hit_banks, first_columns(d, c, is_write), none) : none;
    if (!w->activate.is_known)
        w->activate = w->miss_banks ? earliest(d, w, w->miss_banks, first_activates(d, c), none) : none;
}

/* The bank's next command is a column for `hit`, the first burst of its open row. */
static inline void make_hit(const dram_parameters *d, const dram_channel *c, dram_window *w, int64_t bank, int16_t hit,
                            int is_write) {
    w->hit[bank] = hit;
    w->hit_banks |= (uint64_t)1 << bank;
    w->miss_banks &= ~((uint64_t)1 << bank);
    w->ready[bank] = later(w->burst[hit].entered, c->bank[bank].column[is_write]);
    w->number[bank] = w->burst[hit].number;
    if (w->column.is_known)
        w->column = earliest(d, w, (uint64_t)1 << bank, first_columns(d, c, is_write), w->column);
}

/* The bank's next command is an activation for its first burst. */
static inline void make_miss(const dram_parameters *d, const dram_channel *c, dram_window *w, int64_t bank) {
    const waiting_burst *burst = &w->burst[w->first[bank]];
    w->hit_banks &= ~((uint64_t)1 << bank);
    w->miss_banks |= (uint64_t)1 << bank;
    w->ready[bank] = time_of_bank(d, c, &c->bank[bank], group_of(d, bank), burst->entered);
    w->number[bank] = burst->number;
    if (w->activate.is_known) w->activate = earliest(d, w, (uint64_t)1 << bank, first_activates(d, c), w->activate);
}

static inline int16_t append(dram_window *w, int64_t bank, waiting_burst burst) {
    const int16_t slot = (int16_t)w->free;
    w->free = w->burst[slot].next;
    w->burst[slot] = burst;
    if (w->first[bank] < 0)
        w->first[bank] = slot;
    else
        w->burst[w->last[bank]].next = slot;
    w->last[bank] = slot;
    w->num_waiting++;
    return slot;
}

/* Take out the first burst of the bank's open row, and find the next one. */
static inline void take_hit(dram_window *w, int64_t bank, int64_t row) {
    const int16_t slot = w->hit[bank];
    int16_t before = -1, next = w->burst[slot].next;
    for (int16_t i = w->first[bank]; i != slot; i = w->burst[i].next) before = i;
    if (before < 0)
        w->first[bank] = next;
    else
        w->burst[before].next = next;
    if (next < 0) w->last[bank] = before;
    w->burst[slot].next = (int16_t)w->free;
    w->free = slot;
    w->num_waiting--;
    while (next >= 0 && w->burst[next].row != row) next = w->burst[next].next;
    w->hit[bank] = next;
}

static inline void give_column(const dram_parameters *d, dram_channel *c, dram_window *w, int is_write,
                               kind_counts *counts) {
    const int64_t bank = w->column.bank;
    const waiting_burst *burst = &w->burst[w->hit[bank]];
    const burst_plan plan = {.bank = &c->bank[bank], .group = group_of(d, bank), .column = w->column.clock};
    counts[burst->kind][ROW_HITS] += !burst->is_opened;
    note_column(d, c, &plan, is_write);
    note_issued(d, c, plan.column);
    take_hit(w, bank, plan.bank->open_row);
    w->column.is_known = 0;
    if (w->hit[bank] >= 0)
        w->number[bank] = w->burst[w->hit[bank]].number;
    else if (w->first[bank] >= 0)
        make_miss(d, c, w, bank);
    else
        w->hit_banks &= ~((uint64_t)1 << bank);
}

static inline void give_activate(const dram_parameters *d, dram_channel *c, dram_window *w, int is_write) {
    const int64_t bank = w->activate.bank;
    waiting_burst *burst = &w->burst[w->first[bank]];
    const burst_plan plan = {&c->bank[bank], group_of(d, bank), burst->row, .activate = w->activate.clock};
    note_activate(d, c, &plan);
    burst->is_opened = 1;
    w->activate.is_known = 0;
    make_hit(d, c, w, bank, w->first[bank], is_write);
}

static inline void refresh_window(const dram_parameters *d, dram_channel *c, dram_window *w, int64_t until) {
    for (uint64_t left = w->miss_banks; left; left &= left - 1) {
        const int64_t bank = __builtin_ctzll(left), clock = time_to_precharge(c, w, bank);
        if (c->bank[bank].open_row < 0 || clock >= c->refresh_due) continue;
        c->bank[bank].open_row = -1;
        c->bank[bank].precharge = clock;
    }
    refresh(d, c, w->num_waiting ? LONG_AGO : until);
    w->column.is_known = w->activate.is_known = 0;
    for (uint64_t left = w->miss_banks | w->hit_banks; left; left &= left - 1) {
        const int64_t bank = __builtin_ctzll(left);
        w->hit[bank] = -1;
        make_miss(d, c, w, bank);
    }
}

/* Give the next command, or refresh; 0 if that is not before `until`. At one clock a column precedes an activation. */
static inline int give_next(const dram_parameters *d, dram_channel *c, dram_window *w, int64_t until, int is_write,
                            kind_counts *counts) {
    choose_commands(d, c, w, is_write);
    const int64_t due = c->refresh_due, opening = d->activate_to_column[is_write];
    const int64_t column = w->column.clock < due ? w->column.clock : NEVER;
    const int64_t activate = w->activate.clock + opening < due ? w->activate.clock : NEVER;
    const int64_t next = earlier(column, activate);
    if ((next == NEVER ? due : next) >= until) return 0;
    if (next == NEVER)
        refresh_window(d, c, w, until);
    else if (column <= activate)
        give_column(d, c, w, is_write, counts);
    else
        give_activate(d, c, w, is_write);
    return 1;
}

static inline void make_room(const dram_parameters *d, dram_channel *c, dram_window *w, int is_write,
                             kind_counts *counts) {
    while (w->num_waiting == d->queue_depth) give_next(d, c, w, NEVER, is_write, counts);
}

/* A burst enters when it is ready and a column has made room; commands before that are chosen without it. */
static inline void enter(const dram_parameters *d, dram_channel *c, dram_window *w, int64_t burst, int64_t ready,
                         int is_write, uint8_t kind, kind_counts *counts) {
    make_room(d, c, w, is_write, counts);
    const int64_t turn = c->turn + w->num_waiting, entered =
        later(ready, c->issued[turn < d->queue_depth ? turn : turn - d->queue_depth]);
    while (give_next(d, c, w, entered, is_write, counts)) {}
    const burst_plan plan = place_burst(d, c, burst);
    const int64_t bank = plan.bank - c->bank;
    const int is_first = w->first[bank] < 0;
    const int16_t slot = append(w, bank, (waiting_burst){plan.row, entered, w->num_entered++, -1, kind, 0});
    if (w->hit[bank] >= 0) return;
    if (plan.bank->open_row == plan.row && (is_first || entered <= time_to_precharge(c, w, bank))) {
        if (w->activate.bank == bank) w->activate.is_known = 0;
        make_hit(d, c, w, bank, slot, is_write);
    } else if (is_first) {
        make_miss(d, c, w, bank);
    }
}

/* Give all commands that the list still needs. */
static inline void drain(const dram_parameters *d, dram_channel *c, dram_window *w, int is_write, kind_counts *counts) {
    while (w->num_waiting) give_next(d, c, w, NEVER, is_write, counts);
    w->column.is_known = w->activate.is_known = 0;
}
#endif
