"""A DRAM clock by clock: at each, every command is tried against a table of distances to the commands before it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Burst:
    ready: int
    is_write: bool
    group: int
    bank: int
    row: int
    kind: int = 0

    @property
    def command(self):
        return "write" if self.is_write else "read"


def distances(dram):
    """(earlier command, later command, where both are given, clocks); the names are those of Ramulator's HBM.cpp."""
    t, burst = dram.timings, dram.burst_length // 2
    table = [("act", "act", "channel", t["rrd_s"]), ("act", "act", "group", t["rrd_l"]),
             ("act", "act", "bank", t["rc"]), ("act", "pre", "bank", t["ras"]), ("pre", "act", "bank", t["rp"]),
             ("act", "read", "bank", t["rcd_read"]), ("act", "write", "bank", t["rcd_write"]),
             ("read", "pre", "bank", t["rtp"]), ("write", "pre", "bank", t["cwl"] + burst + t["wr"]),
             ("read", "write", "channel", t["cl"] + t["ccd_s"] + 2 - t["cwl"]),
             ("write", "read", "channel", t["cwl"] + burst + t["wtr_s"]),
             ("write", "read", "group", t["cwl"] + burst + t["wtr_l"]), ("ref", "act", "channel", t["rfc"])]
    for command in ("read", "write"):
        table += [(command, command, "channel", max(burst, t["ccd_s"])), (command, command, "group", t["ccd_l"])]
    return table


class History:
    """Commands that were given: (clock, command, group, bank, number of the burst)."""

    def __init__(self, dram, commands=()):
        self.table, self.faw = distances(dram), dram.timings["faw"]
        self.commands, self.last = [], {}
        for command in commands:
            self.give(*command)

    def give(self, clock, command, group, bank, number):
        self.commands.append((clock, command, group, bank, number))
        for where in (("channel",), ("group", group), ("bank", group, bank)):
            key = (command, *where)
            self.last[key] = max(clock, self.last.get(key, clock))

    def allows(self, clock, command, group, bank):
        where = {"channel": (), "group": (group,), "bank": (group, bank)}
        if any(later == command and self.last.get((earlier, scope, *where[scope]), -math.inf) + clocks > clock
               for earlier, later, scope, clocks in self.table):
            return False
        acts = sorted(at for at, given, *_ in self.commands[-300:] if given == "act")
        return command != "act" or len(acts) < 4 or acts[-4] + self.faw <= clock


def rows_after(bursts, rows):
    """Which of the bursts miss, and the rows that are open after them."""
    rows, misses = dict(rows), []
    for burst in bursts:
        misses.append(rows.get((burst.group, burst.bank)) != burst.row)
        rows[burst.group, burst.bank] = burst.row
    return misses, rows


def run_clocks(dram, bursts, misses, history, rows, columns, start, end):
    """Give commands for bursts from len(columns) on, clock by clock, until `end`; columns grows by their clocks."""
    opened, clock, rows = set(), start, dict(rows)
    while clock < end and len(columns) < len(bursts):
        head = bursts[len(columns)]
        if head.ready <= clock and rows.get((head.group, head.bank)) == head.row and \
                history.allows(clock, head.command, head.group, head.bank) and \
                (len(columns) in opened or not misses[len(columns)]):
            history.give(clock, head.command, head.group, head.bank, len(columns))
            columns.append(clock)
        waiting = range(len(columns), min(len(bursts), len(columns) + dram.queue_depth))
        taken = set()
        for i in waiting:
            burst, bank = bursts[i], (bursts[i].group, bursts[i].bank)
            if burst.ready <= clock and misses[i] and i not in opened and bank not in taken:
                if bank in rows and history.allows(clock, "pre", *bank):
                    history.give(clock, "pre", *bank, i)
                    del rows[bank]
                if bank not in rows and history.allows(clock, "act", *bank) and \
                        all(j in opened or not misses[j] for j in range(len(columns), i)):
                    history.give(clock, "act", *bank, i)
                    rows[bank] = burst.row
                    opened.add(i)
            taken.add(bank)
        clock += 1


def refresh_all(history, rows, due, precharge_to_activate):
    """Close all banks, from when the refresh is due on, and refresh them; the clock of the refresh."""
    clock = due
    while not all(history.allows(clock, "pre", *bank) for bank in rows):
        clock += 1
    clock += precharge_to_activate if rows else 0
    history.give(clock, "ref", -1, -1, -1)
    return clock


def serve_channel(dram, bursts, _):
    """Clocks of the columns of one channel's bursts, and whether each hit an open row."""
    history, rows, columns, missed, start = History(dram), {}, [], [], 0
    interval = dram.timings["refi"] or math.inf
    due = interval
    while True:
        num_before = len(columns)
        misses, _ = rows_after(bursts[num_before:], rows)
        run_clocks(dram, bursts, missed + misses, history, rows, columns, start, due)
        missed += misses[:len(columns) - num_before]
        if len(columns) == len(bursts):
            return columns, [not miss for miss in missed]
        _, rows = rows_after(bursts[num_before:len(columns)], rows)
        history = History(dram, [given for given in history.commands if given[-1] < len(columns)])
        start = refresh_all(history, rows, due, dram.timings["rp"])
        rows, due = {}, due + interval


def place(dram, number):
    """Channel, bank group, bank and row of a burst, by its number in the address space."""
    sizes = {"channel": dram.num_channels, "bank group": dram.num_bank_groups, "bank": dram.banks_per_group,
             "column": dram.row_bytes // dram.burst_bytes, "row": dram.num_rows}
    place = {}
    for field in dram.mapping:
        number, place[field] = divmod(number, sizes[field])
    return place["channel"], place["bank group"], place["bank"], place["row"]


def serve(dram, calls, serve_channel=serve_channel):
    """When each call is done, and (kind, is_write, is_hit) of all bursts; a call is (ready, is_write, requests)."""
    channels, calls_of = [[] for _ in range(dram.num_channels)], [[] for _ in range(dram.num_channels)]
    for i, (ready, is_write, requests) in enumerate(calls):
        for address, num_bytes, kind in requests:
            for number in range(address // dram.burst_bytes, (address + num_bytes - 1) // dram.burst_bytes + 1):
                channel, *where = place(dram, number)
                channels[channel].append(Burst(ready, is_write, *where, kind))
                calls_of[channel].append(i)
    done, found = [ready for ready, _, _ in calls], []
    for bursts, numbers in zip(channels, calls_of, strict=True):
        for burst, call, column, is_hit in zip(bursts, numbers, *serve_channel(dram, bursts, numbers), strict=True):
            latency = dram.timings["cwl" if burst.is_write else "cl"] + dram.burst_length // 2
            done[call] = max(done[call], column + latency)
            found.append((burst.kind, burst.is_write, is_hit))
    return done, found
