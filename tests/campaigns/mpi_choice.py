"""The environments of Open MPI and MPICH, as jobs/env.sh makes them, for campaigns that start ranks."""

from __future__ import annotations

import os
import subprocess
from functools import cache

from campaigns.runner import ROOT

BOTH = ("openmpi", "mpich")


def names_of(mpi: str) -> tuple[str, ...]:
    """The MPIs that --mpi names."""
    return BOTH if mpi == "both" else (mpi,)


@cache
def environment_of(mpi: str) -> dict[str, str]:
    """The whole environment in which this MPI was chosen."""
    shown = subprocess.run(["bash", "-c", f"source jobs/env.sh && hpcgnn_use_mpi {mpi} && env -0"], cwd=ROOT,
                           capture_output=True, check=True).stdout
    return dict(entry.split("=", 1) for entry in shown.decode(errors="surrogateescape").split("\0") if "=" in entry)


def use(environment: dict[str, str]) -> None:
    """Make it this process's own, from which ranks take theirs."""
    for name in ("MPIRUN", "PATH", "LD_LIBRARY_PATH", "MPI4PY_MPIABI"):
        if name in environment:
            os.environ[name] = environment[name]
