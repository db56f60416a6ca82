"""The environment of a run: where, when and by which command it was started, and the versions of its software."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import subprocess
import sys
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from mpi4py import MPI

import hpcgnn
from hpcgnn.ops.simd import simd_level
from hpcgnn.run.process import usable_cores

# Variables of launchers and users that decide how a run is laid out; no other variable is recorded.
LAYOUT_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK", "PBS_JOBID", "LSB_JOBID", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
    "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "OMP_PROC_BIND", "CUDA_VISIBLE_DEVICES", "HPCGNN_SIMD")
# The first variable that is set names the launcher.
LAUNCHERS = {"SLURM_STEP_ID": "srun", "TORCHELASTIC_RUN_ID": "torchrun", "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
             "PMI_SIZE": "MPICH's mpirun"}


version = cache(metadata.version)     # reads a file of each package


def environment() -> dict[str, Any]:
    """Facts about rank 0's process by name; `variables` are the environment variables that shaped the run."""
    return {
        "started": utc_now(), "host": socket.gethostname(), "commit": commit() or "", "command": command_line(),
        "launcher": launcher(os.environ), "processor": processor_name(), "cores": len(usable_cores()),
        "variables": [f"{name}={os.environ[name]}" for name in LAYOUT_VARIABLES if name in os.environ],
    }


def utc_now() -> str:
    """The present second in UTC, ISO 8601: 2026-03-01T12:00:00+00:00."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def command_line() -> str:
    """The command of this process, quoted for a shell, the program without its folder."""
    program, *arguments = sys.argv or [""]
    return shlex.join([Path(program).name or "python", *arguments])


def launcher(variables: dict[str, str] | os._Environ) -> str:
    """The launcher of the ranks, recognized by the variables it sets; "none" for a single process."""
    return next((name for variable, name in LAUNCHERS.items() if variable in variables), "none")


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str | None:
    """Commit of the checkout that contains this package, with "-dirty" if changed; None outside a checkout."""
    folder = Path(hpcgnn.__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return None
    try:
        found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=folder,
                               capture_output=True, text=True, timeout=20)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def software_versions() -> dict[str, str]:
    return {
        "hpcgnn": hpcgnn.__version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "mpi4py": version("mpi4py"),
        "mpi": MPI.Get_library_version().splitlines()[0].strip("\x00 "),
        "platform": f"{sys.platform} {platform.machine()}",
        "simd": simd_level(),
    }
