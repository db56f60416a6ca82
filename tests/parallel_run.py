"""Starts programs under mpirun in processes of their own, with a hard time limit, for tests that end them from outside.

Works with Open MPI and MPICH, also from a pytest that is an MPI process itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fork_server import forked_for, served

RUNTIME_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPIR_", "MPICH_")
KEPT_PREFIXES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_MCA_rmaps", "OMPI_MCA_mpi_yield", "PRTE_MCA_", "MPIR_CVAR_",
                 "OMPI_MCA_btl")     # of jobs/mpi.sh: to look for networks of another kind takes a second
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
ENDING_LIMIT = 30.0    # seconds; the issue asks for 10, the rest is for machines that are shared and slow


def launcher() -> str:
    """mpirun: the one that jobs/env.sh chose, or the first on PATH."""
    found = os.environ.get("MPIRUN") or shutil.which("mpirun") or shutil.which("mpiexec")
    assert found, "no mpirun on PATH; set MPIRUN"
    return found


def is_open_mpi() -> bool:
    """Whether `launcher` is Open MPI's."""
    version = subprocess.run([launcher(), "--version"], capture_output=True, text=True, env=clean_environment())
    return "Open MPI" in version.stdout


def clean_environment() -> dict[str, str]:
    """This process's environment without what an MPI runtime left in it, and with one thread a rank."""
    kept = {name: value for name, value in os.environ.items()
            if name.startswith(KEPT_PREFIXES) or not name.startswith(RUNTIME_PREFIXES)}
    return {**kept, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1"}


@dataclass(frozen=True)
class Ended:
    """How a parallel run ended, and how many seconds it took from its start."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def sentences(self) -> list[str]:
        """What hpcgnn itself said on standard error."""
        return [line for line in self.stderr.splitlines() if line.startswith("hpcgnn: ")]


class ParallelRun:
    """mpirun and its ranks; leaving the context kills what is still there.

    Parameters
    ----------
    num_ranks : int
    command : program and arguments of each rank
    cwd : folder to run in, which also takes what the run prints
    more : variables of the environment beside this process's own
    """

    def __init__(self, num_ranks: int, command: list, cwd: Path, more: Mapping[str, str] = MappingProxyType({})):
        binding = ["--bind-to", "none"] if is_open_mpi() else []
        self._outputs = cwd / "mpirun.stdout", cwd / "mpirun.stderr"
        self._started = time.monotonic()
        with open(self._outputs[0], "wb") as stdout, open(self._outputs[1], "wb") as stderr:
            self.process = subprocess.Popen([launcher(), *binding, "-n", str(num_ranks), *map(str, command)], cwd=cwd,
                                            env={**clean_environment(), **more}, stdin=subprocess.DEVNULL,
                                            stdout=stdout, stderr=stderr, start_new_session=True)

    def __enter__(self) -> ParallelRun:
        return self

    def __exit__(self, *exception) -> None:
        for pid in (*descendants(self.process.pid), self.process.pid):
            kill_if_there(pid, signal.SIGKILL)
        self.process.wait()

    def ranks(self) -> dict[int, int]:
        """Process id of every rank; of one that is served, of the process that runs it."""
        found = {rank_of(pid): forked_for(pid) for pid in descendants(self.process.pid)}
        return {rank: pid for rank, pid in sorted(found.items()) if rank >= 0}

    def wait_for(self, condition, seconds: float = 120.0) -> None:
        """Return as soon as `condition()` holds; fail where the run ends or the time is over before."""
        limit = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self._read()}"
            assert time.monotonic() < limit, f"waited {seconds} s: {self._read()}"
            time.sleep(0.005)

    def end(self, seconds: float = 120.0) -> Ended:
        """Wait for the end of mpirun."""
        status = self.process.wait(timeout=seconds)
        return Ended(status, *self._read(), time.monotonic() - self._started)

    def left(self, ranks: dict[int, int], seconds: float = ENDING_LIMIT) -> list[int]:
        """Processes of ranks that are still there, when they have had so many seconds to end."""
        limit = time.monotonic() + seconds
        while any(map(is_running, ranks.values())) and time.monotonic() < limit:
            time.sleep(0.01)
        return [pid for pid in ranks.values() if is_running(pid)]

    def _read(self) -> tuple[str, str]:
        return tuple(path.read_text(errors="replace") for path in self._outputs)


def descendants(pid: int) -> list[int]:
    """Process ids of all children, grandchildren and so on, from /proc."""
    try:
        tasks = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(child) for task in tasks for child in task]
    return children + [grandchild for child in children for grandchild in descendants(child)]


def rank_of(pid: int) -> int:
    """Rank that the launcher gave a process, -1 if it is none."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return -1
    values = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return next((int(values[name]) for name in RANK_VARIABLES if name in values), -1)


def kill_if_there(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def hpcgnn(*arguments) -> list:
    """Command line of `hpcgnn` with the interpreter that runs the tests."""
    return [sys.executable, "-m", "hpcgnn", *arguments]


def run_parallel_command(num_ranks: int, command: list, cwd: Path, seconds: float = 120.0) -> Ended:
    """Run a command to its end and print how long it took; Python comes from the server."""
    if command[0] == sys.executable:
        command = served(command[1:])
    with ParallelRun(num_ranks, command, cwd) as run:
        ended = run.end(seconds)
    print(f"{num_ranks} ranks, {ended.seconds:.1f} s, status {ended.status}: {' '.join(ended.sentences)}")
    return ended
