"""Seconds, bytes, rows and memory of each rank, gathered on rank 0: the report shows which rank the others wait for."""

from __future__ import annotations

import os
import re
import resource
import socket
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcgnn.exchange.traffic import Traffic
from hpcgnn.partition.partition import PartitionStatistics

MAX_LISTED_RANKS = 1024      # more ranks would make a line of metrics too long
STATM, STAT = Path("/proc/self/statm"), Path("/proc/stat")


def costs_of(seconds: float, traffic: Traffic) -> dict[str, float]:
    """Costs of an epoch on this rank: seconds of computing, packing, MPI, and blocked in MPI; bytes sent."""
    return {
        "compute_seconds": seconds - traffic.exchange_seconds - traffic.quantize_seconds,
        "quantize_seconds": traffic.quantize_seconds, "exchange_seconds": traffic.exchange_seconds,
        "blocked_seconds": traffic.blocked_seconds, "sent_bytes": sum(traffic.sent_by_peer.values()),
    }


def costs_by_rank(comm: MPI.Comm, costs: dict[str, float]) -> dict[str, dict[str, list[float]]]:
    """Collective: per cost of the last epoch, and for memory, a list over ranks, on rank 0; {} for too many ranks."""
    if not 1 < comm.size <= MAX_LISTED_RANKS:
        return {}
    everyone = comm.gather({**costs, "rss_bytes": resident_bytes()})
    return {"by_rank": _as_lists(everyone)} if comm.rank == 0 else {}


def parts_by_rank(comm: MPI.Comm, part: PartitionStatistics) -> dict[str, dict[str, list[Any]]]:
    """Collective: host, rows, edges and peak memory of each rank, on rank 0; empty if there are too many ranks."""
    if comm.size > MAX_LISTED_RANKS:
        return {}
    everyone = comm.gather({
        "host": socket.gethostname(), "inner_rows": part.num_inner, "halo_rows": part.num_halo,
        "edges": part.num_edges, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
    return {"parts_by_rank": _as_lists(everyone)} if comm.rank == 0 else {}


LEAST_SECONDS = 1.0      # the system counts in ticks of 10 ms, too coarse for less


class OtherPrograms:
    """How many cores other programs keep busy, of the cores that the ranks may use, since this object was made."""

    def __init__(self) -> None:
        self._started, self._busy, self._own = time.monotonic(), busy_seconds(), time.process_time()

    def num_cores(self, comm: MPI.Comm) -> float | None:
        """Collective: the mean number on the most disturbed host, on rank 0; else None.

        Also None without /proc/stat, and for less than LEAST_SECONDS.
        """
        now, seconds = busy_seconds(), time.monotonic() - self._started
        busy = {core: now[core] - before for core, before in self._busy.items() if core in now}
        everyone = comm.gather((socket.gethostname(), busy, time.process_time() - self._own))
        if comm.rank or not busy or seconds < LEAST_SECONDS:
            return None
        # Ranks of a host may share cores: each core counts once.
        cores: dict[str, dict[int, float]] = defaultdict(dict)
        own: Counter[str] = Counter()
        for host, of_rank, own_seconds in everyone:
            cores[host].update(of_rank)
            own[host] += own_seconds
        return max(0.0, *((sum(cores[host].values()) - own[host]) / seconds for host in cores))


def busy_seconds() -> dict[int, float]:
    """Seconds since the machine started that each core of this process was busy; {} without /proc/stat."""
    if not STAT.exists():
        return {}
    lines = [line.split() for line in STAT.read_text().splitlines() if re.match(r"cpu\d", line)]
    # user, nice, system, idle, iowait, irq, softirq, steal: all but idle and iowait.
    ticks = {int(words[0][3:]): sum(map(int, (*words[1:4], *words[6:9]))) for words in lines}
    return {core: ticks[core] / os.sysconf("SC_CLK_TCK") for core in os.sched_getaffinity(0) if core in ticks}


def resident_bytes() -> int:
    """Resident memory of this process; its peak if the system does not report the present value."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _as_lists(everyone: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [one[key] for one in everyone] for key in everyone[0]}
