"""Rank and number of ranks, read from the launcher's environment variables before MPI starts."""

from __future__ import annotations

import os

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
    """Return this process's rank; 0 outside a parallel run."""
    if is_by_torchrun():
        return int(os.environ["RANK"])
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


def is_launched_with_others() -> bool:
    """Whether a launcher started this process together with others."""
    started = launched_size()[1]
    return launched_rank() > 0 or (started.isdecimal() and int(started) > 1)


def launched_size() -> tuple[str, str]:
    """Return the variable that holds the number of ranks, and its value; "" and "1" if none is set."""
    if is_by_torchrun():
        return "WORLD_SIZE", os.environ["WORLD_SIZE"]
    return next(((name, os.environ[name]) for name in SIZE_VARIABLES if name in os.environ), ("", "1"))
