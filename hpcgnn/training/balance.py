"""Seconds, bytes, rows and memory of each rank, gathered on rank 0: the report shows which rank the others wait for."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcgnn.exchange.traffic import Traffic
from hpcgnn.partition.statistics import PartitionStatistics

MAX_LISTED_RANKS = 1024      # more ranks would make a line of metrics too long
STATM = Path("/proc/self/statm")


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


def resident_bytes() -> int:
    """Resident memory of this process; its peak if the system does not report the present value."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _as_lists(everyone: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [one[key] for one in everyone] for key in everyone[0]}
