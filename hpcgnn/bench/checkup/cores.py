"""Cores, threads and the allocator that a rank gets here, and where each rank of a launch is bound."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcgnn.bench.checkup.finding import Finding
from hpcgnn.bench.environment import allocator_name, available_cores, find_tcmalloc

SIBLINGS = Path("/sys/devices/system/cpu/smt/active")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
OMP = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
       "KMP_AFFINITY", "GOMP_CPU_AFFINITY")


class Place(NamedTuple):
    """Hold where a rank runs: its machine, the cores that it may use, and the threads that it is told of, or ""."""

    host: str
    cores: tuple[int, ...]
    threads: str


def place_here(variables: Mapping[str, str]) -> Place:
    """Return where this process runs; see `core_findings` for `variables`."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Place(platform.node(), tuple(sorted(cores)), variables.get("OMP_NUM_THREADS", ""))


def core_findings(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Tell the cores of this process, the variables that rule its threads, and the allocator.

    Parameters
    ----------
    variables : those that the user has set, before hpcgnn sets its own
    """
    usable, there = available_cores(), os.cpu_count() or 1
    siblings = SIBLINGS.read_text().strip() == "1" if SIBLINGS.exists() else False
    quota = quota_of(QUOTA.read_text()) if QUOTA.exists() else None
    seen = (f"{usable} of the machine's {there}{', two threads share each' if siblings else ''}"
            f"{f', {quota:g} by a quota' if quota is not None else ''}")
    remedy = ""
    if quota is not None and quota < usable:
        remedy = (f"the container gives the time of {quota:g} cores, more threads than that wait for each other: set "
                  f"OMP_NUM_THREADS={max(1, int(quota))} for all ranks together")
    elif usable == 1 and there > 1:
        remedy = ("this process is bound to one core; under Open MPI use --bind-to none or --map-by numa, under Slurm "
                  "--cpus-per-task")
    elif siblings:
        remedy = "a rank that has a whole core to itself is often faster: try OMP_NUM_THREADS at half the number"
    yield Finding("cores", seen, remedy)
    given = [f"{name}={variables[name]}" for name in OMP if name in variables]
    threads = variables.get("OMP_NUM_THREADS", "").partition(",")[0]
    yield Finding("threads", ", ".join(given) or "no variable is set: the ranks of a node share its cores out evenly",
                  f"OMP_NUM_THREADS={threads} is more than the {usable} cores of this process; lower or unset it"
                  if threads.isdecimal() and int(threads) > usable else "")
    is_glibc = platform.libc_ver()[0] == "glibc"
    yield Finding("allocator", f"{allocator_name(variables)}{', told to keep what is freed' if is_glibc else ''}; "
                  f"{'tcmalloc is installed' if find_tcmalloc() else 'no tcmalloc'}",
                  "" if is_glibc else "this C library is not glibc, so freed memory is not kept and every epoch pays "
                  "for its pages again; preload tcmalloc")


def quota_of(text: str) -> float | None:
    """Return the cores of a cgroup's cpu.max, None where there is no limit."""
    words = text.split()
    return None if len(words) != 2 or not words[0].isdecimal() else int(words[0]) / int(words[1])


def binding_findings(places: Sequence[Place]) -> Iterator[Finding]:
    """Tell the cores of each rank, and whether ranks of one machine sit on each other's or on too few.

    Parameters
    ----------
    places : one a rank, in the order of ranks
    """
    for rank, place in enumerate(places):
        company = [other for other in places if other.host == place.host]
        every = set().union(*(other.cores for other in company))
        threads = int(place.threads) if place.threads.isdecimal() else max(1, len(every) // len(company))
        remedy = (f"{threads} threads share {len(place.cores)} cores; use --bind-to none, --map-by numa or "
                  "--cpus-per-task" if threads > len(place.cores) else "")
        yield Finding(f"rank {rank}", f"{place.host}, cores {span_text(place.cores)}, {threads} threads", remedy)
    for host in dict.fromkeys(place.host for place in places):
        company = [place for place in places if place.host == host]
        every = set().union(*(place.cores for place in company))
        if len(company) > len(every):
            yield Finding("ranks", f"{len(company)} on the {len(every)} cores of {host}",
                          "ranks wait for each other's cores; start at most one rank a core")


def span_text(cores: Sequence[int]) -> str:
    """Write numbers in ascending order as spans: 0-3,8."""
    spans: list[list[int]] = []
    for core in cores:
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
