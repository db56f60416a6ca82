"""A DRAM as its TOML file describes it, and `Memory`, which computes when it has served an array of requests.

Channels work in parallel. Each has banks with one open row; a burst to the open row is a hit, any other burst must
close it and activate its own row first. The loop over bursts is ext/src/dram_channel.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn._ext import dram_timing
from hpcgnn._ext.dram_timing import LIMITS
from hpcgnn.accelerators.design import read_named
from hpcgnn.accelerators.schedule import KINDS, Requests
from hpcgnn.errors import ConfigError

FOLDER = Path(__file__).parent / "configurations" / "dram"
TIMINGS = ("rcd_read", "rcd_write", "rp", "cl", "cwl", "ccd_s", "ccd_l", "ras", "rc", "rrd_s", "rrd_l", "faw", "rtp",
           "wr", "wtr_s", "wtr_l", "refi", "rfc")
SCHEDULING = ("first-ready", "in-order")
NO_WHOLE_NUMBERS = {"clock_ghz", "scheduling", "mapping"}
ADDRESS_FIELDS = {"channel", "bank group", "column", "bank", "row"}


def read_dram(name: str | Path, **changes: Any) -> Dram:
    """Read a DRAM by its name or path; `changes` replace numbers of the file.

    Raises ConfigError if it can't be read, or a number is missing, unknown or impossible.
    """
    path, said = read_named("DRAM", name, FOLDER)
    for section, names in (("dram", FIELDS), ("timings", TIMINGS)):
        table = said.get(section, {})
        if not isinstance(table, dict) or set(table) != set(names):
            found = ", ".join(table) if isinstance(table, dict) and table else "nothing"
            raise ConfigError(f"[{section}] of {path} names {found}; expected {', '.join(names)}")
    if set(said) != {"dram", "timings"}:
        raise ConfigError(f"{path} has the sections {', '.join(said)}; expected dram and timings")
    organization, timings = said["dram"], said["timings"]
    for key, value in changes.items():
        if key not in organization and key not in timings:
            raise ConfigError(f"{path} has no {key}; it has {', '.join([*organization, *timings])}")
        (organization if key in organization else timings)[key] = value
    _check(path, organization, timings)
    return Dram(path.stem, **organization | {"mapping": tuple(organization["mapping"])}, timings=timings)


def _check(path: Path, organization: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
    clock = organization["clock_ghz"]
    if isinstance(clock, bool) or not isinstance(clock, (int, float)) or not 0.001 <= clock <= 100:
        raise ConfigError(f"clock_ghz of {path} is {clock!r}; expected a number from 0.001 to 100")
    for name, value in {**organization, **timings}.items():
        least = 0 if name == "refi" else 1
        if name not in NO_WHOLE_NUMBERS and (type(value) is not int or not least <= value < 1 << 32):
            raise ConfigError(f"{name} of {path} is {value!r}; expected a whole number from {least} on")
    for name in set(FIELDS) - {*NO_WHOLE_NUMBERS, "queue_depth"}:
        if organization[name] & (organization[name] - 1):
            raise ConfigError(f"{name} of {path} is {organization[name]}; expected a power of two")
    if organization["scheduling"] not in SCHEDULING:
        raise ConfigError(f"scheduling of {path} is {organization['scheduling']!r}; expected {' or '.join(SCHEDULING)}")
    mapping = organization["mapping"]
    if not isinstance(mapping, (list, tuple)) or sorted(map(str, mapping)) != sorted(ADDRESS_FIELDS):
        raise ConfigError(f"mapping of {path} is {mapping!r}; expected an order of {', '.join(sorted(ADDRESS_FIELDS))}")
    _check_sizes(path, organization)
    _check_timings(path, organization["burst_length"] // 2, timings)


def _check_sizes(path: Path, organization: Mapping[str, Any]) -> None:
    burst_bytes = organization["channel_bits"] * organization["burst_length"] // 8
    banks = organization["num_bank_groups"] * organization["banks_per_group"]
    limits = {"burst_length": (2, 64), "row_bytes": (max(burst_bytes, 1), 1 << 20), "channel_bits": (8, 1 << 16),
              "num_channels": (1, 1 << 12), "num_bank_groups": (1, LIMITS["groups"]),
              "banks in all groups": (1, LIMITS["banks"]), "queue_depth": (1, LIMITS["queue"]),
              "num_rows": (1, 1 << 24)}
    for name, (least, most) in limits.items():
        value = organization.get(name, banks)
        if not least <= value <= most:
            raise ConfigError(f"{name} of {path}: {value}; expected {least} to {most}")


def _check_timings(path: Path, burst_clocks: int, timings: Mapping[str, int]) -> None:
    if timings["cl"] + timings["ccd_s"] + 2 <= timings["cwl"]:
        raise ConfigError(f"cwl of {path} is {timings['cwl']}; expected less than cl + ccd_s + 2")
    closing = max(timings["ras"], timings["cwl"] + burst_clocks + timings["wr"], timings["rtp"]) + timings["rp"]
    opening = max(timings["rc"], timings["faw"], timings["rrd_l"]) + timings["rcd_read"] + timings["rcd_write"]
    if timings["refi"] and timings["refi"] <= timings["rfc"] + closing + opening:
        raise ConfigError(f"refi of {path} is {timings['refi']}; expected 0, or more than the "
                          f"{timings['rfc'] + closing + opening} clocks in which a refresh and a burst are served")


NO_REFRESH = 1 << 60        # clocks, longer than any pass


@dataclass(frozen=True)
class Dram:
    """Organization of a DRAM, and its timings in DRAM clocks, named as in configurations/dram/hbm1.toml."""

    name: str
    clock_ghz: float            # two transfers per clock
    # num_channels, num_bank_groups, banks_per_group, num_rows: powers of two
    num_channels: int
    # channel_bits, burst_length: bits of a transfer, transfers of a burst
    channel_bits: int
    burst_length: int
    num_bank_groups: int
    banks_per_group: int
    num_rows: int
    row_bytes: int              # bytes of a row in one bank
    queue_depth: int            # bursts of a channel that may have commands at the same time
    scheduling: str             # "first-ready" or "in-order", see `Memory`
    mapping: tuple[str, ...]    # address fields above those within a burst, the lowest first
    timings: Mapping[str, int]

    @property
    def burst_bytes(self) -> int:
        """Bytes of one command. A request that begins or ends inside a burst transfers all of it."""
        return self.channel_bits * self.burst_length // 8

    @property
    def burst_clocks(self) -> int:
        """Clocks for which a burst occupies its channel's data lines."""
        return self.burst_length // 2

    @property
    def capacity_bytes(self) -> int:
        return self.num_channels * self.num_bank_groups * self.banks_per_group * self.num_rows * self.row_bytes

    def cycles_per_clock(self, clock_ghz: float) -> Fraction:
        """Accelerator cycles per DRAM clock, with both frequencies rounded to whole kHz."""
        return Fraction(round(clock_ghz * 1e6), round(self.clock_ghz * 1e6))

    def parameters(self) -> dict[str, Any]:
        """Parameters of ext/src/dram_channel.h, by name.

        Turnarounds are Ramulator's (HBM.cpp): CL + CCD_S + 2 - CWL from a read to a write, CWL + burst + WTR back.
        """
        t, burst = self.timings, self.burst_clocks
        to_write, spacing = t["cl"] + t["ccd_s"] + 2 - t["cwl"], max(t["ccd_s"], burst)
        written = t["cwl"] + burst
        return {
            **_shifts(self), **_runs(self, spacing), "queue_depth": self.queue_depth,
            "first_ready": int(self.scheduling == "first-ready"),
            "latency": [t["cl"] + burst, written], "activate_to_column": [t["rcd_read"], t["rcd_write"]],
            "column_to_precharge": [t["rtp"], written + t["wr"]],
            "turnaround": [written + t["wtr_s"], to_write], "turnaround_in_group": [written + t["wtr_l"], to_write],
            "spacing": spacing, "spacing_in_group": t["ccd_l"], "activate_spacing": t["rrd_s"],
            "activate_spacing_in_group": t["rrd_l"], "four_activates": t["faw"], "activate_to_precharge": t["ras"],
            "activate_to_activate": t["rc"], "precharge_to_activate": t["rp"],
            "refresh_interval": t["refi"] or NO_REFRESH, "refresh_time": t["rfc"]}


FIELDS = tuple(field.name for field in fields(Dram) if field.name not in ("name", "timings"))


def _shifts(dram: Dram) -> dict[str, int]:
    num = {"channel": dram.num_channels, "bank group": dram.num_bank_groups, "bank": dram.banks_per_group,
           "column": dram.row_bytes // dram.burst_bytes, "row": dram.num_rows}
    shift, shifts = 0, {}
    for field in dram.mapping:
        shifts[field] = shift
        shift += num[field].bit_length() - 1
    return {"num_channels": num["channel"], "num_groups": num["bank group"], "banks_per_group": num["bank"],
            "num_rows": num["row"], "burst_shift": dram.burst_bytes.bit_length() - 1,
            "channel_shift": shifts["channel"], "group_shift": shifts["bank group"], "bank_shift": shifts["bank"],
            "row_shift": shifts["row"]}


def _runs(dram: Dram, spacing: int) -> dict[str, int]:
    # How many bursts of a channel follow each other in the same rows, how many groups take turns, and how fast.
    columns, in_group = dram.row_bytes // dram.burst_bytes, dram.timings["ccd_l"]
    if dram.mapping[:2] == ("channel", "column"):
        return {"run_length": columns, "run_groups": 1, "run_spacing": max(spacing, in_group)}
    if dram.mapping[:3] == ("channel", "bank group", "column") and dram.num_bank_groups * spacing >= in_group:
        groups = dram.num_bank_groups
        return {"run_length": columns * groups, "run_groups": groups, "run_spacing": spacing}
    return {"run_length": 1, "run_groups": 1, "run_spacing": 1}


@dataclass(frozen=True)
class Traffic:
    num_bytes: int     # bytes of whole bursts
    requested_bytes: int
    # num_bursts, row_hits, row_misses: a miss activates a row
    num_bursts: int
    row_hits: int
    row_misses: int


def traffic_of(counts: np.ndarray, burst_bytes: int) -> dict[str, Traffic]:
    """Traffic of each kind that has requests, from counts (len(KINDS), 3) int64: requested bytes, bursts, hits."""
    return {kind: Traffic(bursts * burst_bytes, requested, bursts, hits, bursts - hits)
            for kind, (requested, bursts, hits) in zip(KINDS, counts.tolist(), strict=True) if bursts}


def as_arrays(requests: Requests, what: str, num_blocks: int, capacity: int) -> Sequence[np.ndarray]:
    arrays = [np.ascontiguousarray(array) for array in requests]
    if [array.dtype for array in arrays] != [np.int32, np.int64, np.int64, np.uint8] or \
            {array.shape for array in arrays} != {(len(arrays[0]),)}:
        said = ", ".join(f"{name} of {array.dtype} {array.shape}"
                         for name, array in zip(Requests._fields, arrays, strict=True))
        raise ConfigError(f"{what} have {said}; expected int32, int64, int64 and uint8, all of one length")
    bad = dram_timing.first_bad_request(arrays, 0, num_blocks, len(KINDS), capacity)
    if bad >= 0:
        block, address, num_bytes, kind = (array[bad].item() for array in arrays)
        raise ConfigError(f"request {bad} of {what} is of block {block}, kind {kind}, with {num_bytes} bytes at "
                          f"{address}; expected blocks from 0 to {num_blocks - 1} that do not descend, "
                          f"kinds below {len(KINDS)}, and at least a byte within the DRAM's {capacity}")
    return arrays


class Memory:
    """A DRAM at work: its open rows and the times of its last commands, in DRAM clocks from 0.

    A row stays open until another row of its bank is needed or all banks are refreshed. "in-order" serves columns and
    activates rows in the order of the bursts; rows run ahead as far as the queue reaches. "first-ready" is Ramulator's
    default (FRFCFS_PriorHit in Scheduler.h, with the queue of Controller.h).

    Assumed: no row is opened if its column can't come before the next refresh. A burst counts as one miss even if a
    refresh closes its row again before its column.
    """
    # In "first-ready" a channel's queue holds the bursts that are ready, the first ones if there are too many; a burst
    # leaves the queue when its column is read or written. At each clock
    # 1. the oldest burst with an open row and an allowed column gets it;
    # 2. an open row that no queued burst needs is closed if a queued burst needs another row of its bank;
    # 3. the oldest burst with a closed bank and an allowed activation gets its row opened.
    # Bursts of one call are reordered. A burst of a later call may enter the queue and open rows early, but its column
    # comes after the columns of earlier calls. A call ends with its last burst.
    # Not modeled, unlike Ramulator: separate queues for reads and writes (they share one and turn when the calls do);
    # reads answered from waiting writes; one command bus for rows and columns (HBM has two); waiting for a bus to
    # close a row.

    def __init__(self, dram: Dram) -> None:
        self.dram = dram
        self.parameters = dram.parameters()
        self.channels = dram_timing.closed_channels(self.parameters)
        self.counts = np.zeros((2, len(KINDS), 3), np.int64)       # first reads, then writes

    def serve(self, requests: Requests, ready_clock: int = 0, is_write: bool = False) -> int:
        """Serve requests that are ready at one clock, after all earlier ones; return the clock of the last byte moved.

        Without requests, it returns `ready_clock`. Raises ConfigError if requests break the contract of `Requests`.
        """
        num_blocks = int(np.max(requests.block, initial=0)) + 1
        arrays = as_arrays(requests, "requests", num_blocks, self.dram.capacity_bytes)
        if len(arrays[0]) == 0:
            return ready_clock
        return dram_timing.serve_all(self.parameters, self.channels, arrays, ready_clock, is_write,
                                     self.counts[int(is_write)])

    def traffic(self, is_write: bool = False) -> dict[str, Traffic]:
        return traffic_of(self.counts[int(is_write)], self.dram.burst_bytes)
