"""Balance: what each rank did and holds, gathered on rank 0: a report shows by it which rank the others wait for."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcgnn.exchange.traffic import Traffic
from hpcgnn.partition.statistics import PartitionStatistics

MAX_LISTED_RANKS = 1024      # more would make a line of metrics too long
STATM = Path("/proc/self/statm")


def costs_of(seconds: float, traffic: Traffic) -> dict[str, float]:
    """Return what an epoch cost this rank: seconds of computing, packing, MPI and, of these, blocked; bytes sent."""
    return {
        "compute_seconds": seconds - traffic.exchange_seconds - traffic.quantize_seconds,
        "quantize_seconds": traffic.quantize_seconds, "exchange_seconds": traffic.exchange_seconds,
        "blocked_seconds": traffic.blocked_seconds, "sent_bytes": sum(traffic.sent_by_peer.values()),
    }


def costs_by_rank(comm: MPI.Comm, costs: dict[str, float]) -> dict[str, dict[str, list[float]]]:
    """Collective: gather the costs of the last epoch and the resident memory, a list a quantity in the order of the
    ranks, on rank 0; nothing on the others, with one rank, or with more than `MAX_LISTED_RANKS`.
    """
    if not 1 < comm.size <= MAX_LISTED_RANKS:
        return {}
    everyone = comm.gather({**costs, "rss_bytes": resident_bytes()})
    return {"by_rank": _as_lists(everyone)} if comm.rank == 0 else {}


def parts_by_rank(comm: MPI.Comm, part: PartitionStatistics) -> dict[str, dict[str, list[Any]]]:
    """Collective: gather each rank's host, rows, edges and peak memory on rank 0; nothing where ranks are too many."""
    if comm.size > MAX_LISTED_RANKS:
        return {}
    everyone = comm.gather({
        "host": socket.gethostname(), "inner_rows": part.num_inner, "halo_rows": part.num_halo,
        "edges": part.num_edges, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
    return {"parts_by_rank": _as_lists(everyone)} if comm.rank == 0 else {}


def resident_bytes() -> int:
    """Return this process's resident memory; its peak where the system does not tell the present one."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _as_lists(everyone: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [one[key] for one in everyone] for key in everyone[0]}
