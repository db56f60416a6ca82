"""Facts about processes: rank and threads before MPI starts, and what the kernel says about life, cores and memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Kernels, torch and OpenBLAS each have a thread pool on the same cores, so a waiting thread must sleep. It spins for
# about 10 us first: a step has thousands of short parallel regions, and waking a thread costs as much as one of them.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000", "OPENBLAS_THREAD_TIMEOUT": "10"}
# Variable of each launcher with a rank's number. torchrun's RANK is read last, since other programs set it too.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
# Variables with the number of ranks, the most specific first: Open MPI's mpirun, Hydra and pmi2, Slurm's step.
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
# torchrun sets all of these; other programs may set some of them.
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


def is_by_torchrun() -> bool:
    """Whether torchrun, and no MPI launcher, started this process."""
    return all(name in os.environ for name in TORCHRUN) and not any(
        name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"))


def launched_rank() -> int:
    """This process's rank; 0 outside a parallel run."""
    if is_by_torchrun():
        return int(os.environ["RANK"])
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


def is_launched_with_others() -> bool:
    started = launched_size()[1]
    return launched_rank() > 0 or (started.isdecimal() and int(started) > 1)


def launched_size() -> tuple[str, str]:
    """The variable that holds the number of ranks, and its value; "" and "1" if none is set."""
    if is_by_torchrun():
        return "WORLD_SIZE", os.environ["WORLD_SIZE"]
    return next(((name, os.environ[name]) for name in SIZE_VARIABLES if name in os.environ), ("", "1"))


def stat_of(process: int) -> list[str]:
    """Fields of /proc/PROCESS/stat: state, parent, and 17 fields later the start; OSError if it or /proc is missing."""
    # The name in parentheses may hold anything, spaces too.
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()


def usable_cores() -> set[int]:
    """Numbers of the processors that this process may use; two of them may share a core."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
