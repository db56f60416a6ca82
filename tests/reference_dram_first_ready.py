"""The scheduler that serves what is ready first, clock by clock: at each, every command of every burst in the queue is
tried against the table of distances of reference_dram.
"""

from __future__ import annotations

import math

from reference_dram import History, distances, serve


class Channel:
    """Lists are served one after the other, each from the last refresh on, among the commands of those before."""

    def __init__(self, dram):
        self.dram, self.history, self.rows, self.columns = dram, History(dram), {}, []
        self.history.table = [*distances(dram), ("pre", "ref", "channel", dram.timings["rp"])]
        self.interval = dram.timings["refi"] or math.inf
        self.start, self.due = 0, self.interval

    def serve(self, bursts):
        """Clocks of the columns of one list, and whether each found its row open."""
        clocks, missed, queue, coming = {}, set(), [], list(enumerate(bursts))
        num_before, clock = len(self.columns), self.start
        while len(clocks) < len(bursts):
            if clock >= self.due:
                self.refresh()
            self.enter(queue, coming, num_before, len(bursts), clock)
            self.give_column(queue, clocks, clock)
            self.enter(queue, coming, num_before, len(bursts), clock)
            self.close_rows(queue, clock)
            self.open_row(queue, missed, clock)
            clock += 1
        return [clocks[i] for i in range(len(bursts))], [i not in missed for i in range(len(bursts))]

    def enter(self, queue, coming, num_before, num_bursts, clock):
        while coming and coming[0][1].ready <= clock:
            left = num_before + coming[0][0] - self.dram.queue_depth
            if left >= 0 and (left >= len(self.columns) or self.columns[left] > clock):
                return
            queue.append(coming.pop(0))

    def give_column(self, queue, clocks, clock):
        for i, burst in queue:
            bank = burst.group, burst.bank
            if self.rows.get(bank) == burst.row and self.history.allows(clock, burst.command, *bank):
                self.history.give(clock, burst.command, *bank, None)
                self.columns.append(clock)
                clocks[i] = clock
                queue.remove((i, burst))
                return

    def close_rows(self, queue, clock):
        wanted = {(burst.group, burst.bank, burst.row) for _, burst in queue}
        for bank in {(burst.group, burst.bank) for _, burst in queue if (burst.group, burst.bank) in self.rows}:
            if (*bank, self.rows[bank]) not in wanted and self.history.allows(clock, "pre", *bank):
                self.history.give(clock, "pre", *bank, None)
                del self.rows[bank]

    def open_row(self, queue, missed, clock):
        for i, burst in queue:
            bank = burst.group, burst.bank
            opening = self.dram.timings["rcd_" + burst.command]
            if bank not in self.rows and clock + opening < self.due and self.history.allows(clock, "act", *bank):
                self.history.give(clock, "act", *bank, None)
                self.rows[bank] = burst.row
                missed.add(i)
                return

    def refresh(self):
        clock = self.due
        while not all(self.history.allows(clock, "pre", *bank) for bank in self.rows):
            clock += 1
        for bank in self.rows:
            self.history.give(clock, "pre", *bank, None)
        self.rows.clear()
        while not self.history.allows(clock, "ref", -1, -1):
            clock += 1
        self.history.give(clock, "ref", -1, -1, None)
        self.start, self.due = self.due, self.due + self.interval


def serve_channel(dram, bursts, lists):
    """Clocks of the columns of one channel's bursts, by their lists' numbers, and whether each hit an open row."""
    channel, columns, hits = Channel(dram), [], []
    for number in sorted(set(lists)):
        found = channel.serve([burst for burst, of in zip(bursts, lists, strict=True) if of == number])
        columns += found[0]
        hits += found[1]
    return columns, hits


def serve_first_ready(dram, calls):
    """As reference_dram.serve."""
    return serve(dram, calls, serve_channel)
