"""memory: commands under a limit of their address space, from tight to ample. Each ends well or in one sentence, and
what was there is there.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import resource
import shutil
import sys
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False     # children start MPI

from campaigns.calls import fault_in  # noqa: E402
from campaigns.forked import run_forked  # noqa: E402
from campaigns.workplace import COMMANDS, MODULES, Workplace, start  # noqa: E402

import hpcgnn._ext  # noqa: E402

CASE_SECONDS = 60.0
SMALLEST_BITS, LARGEST_BITS = 16.0, 31.0      # of bytes beside what a process has when the command begins


class Memory:
    """The campaign; see the module."""

    cases = range(2**62)

    def __init__(self, scratch: Path, seed: int, mpi: str):
        self._seed, self._workplace = seed, Workplace.make(scratch)
        # The limit is for what commands do, not for the libraries that they load when they first need them.
        kernels = (f"hpcgnn._ext.{module.name}" for module in pkgutil.iter_modules(hpcgnn._ext.__path__))
        for name in (*MODULES, *kernels):
            importlib.import_module(name)
        for command in COMMANDS:
            for name in self._loaded_by(command):
                importlib.import_module(name)

    def try_case(self, number: int) -> str | None:
        """Run a command within so many bytes."""
        rng = random.Random(f"{self._seed}/{number}")
        command = COMMANDS[number % len(COMMANDS)]
        num_bytes = int(2 ** rng.uniform(SMALLEST_BITS, LARGEST_BITS))
        self._workplace.renew()
        status, said = run_forked(lambda: start(self._workplace.command(command), lambda: limit_memory(num_bytes)),
                                  self._workplace.place, CASE_SECONDS)
        fault = f"no end within {CASE_SECONDS:g} s" if status is None else fault_in(status, said)
        if fault is None and status != 0:
            fault = self._workplace.what_is_lost(command)
        return None if fault is None else f"{command} with {num_bytes:,} bytes: {fault}"

    def _loaded_by(self, command: str) -> list[str]:
        """The modules that a command loads when it runs without a limit."""
        self._workplace.renew()
        names = self._workplace.place / "modules"

        def run() -> int:
            status = start(self._workplace.command(command))
            names.write_text("\n".join(name for name in sys.modules if name.startswith(("hpcgnn.", "torch."))))
            return status

        status, said = run_forked(run, self._workplace.place, CASE_SECONDS)
        if status != 0:
            raise AssertionError(f"{command} without a limit ended with {status}: {said}")
        return names.read_text().split()

    def close(self) -> None:
        shutil.rmtree(self._workplace.place, ignore_errors=True)


def limit_memory(num_bytes: int) -> None:
    """Let this process have so many bytes of address space more."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def open_campaign(scratch: Path, seed: int, mpi: str) -> Memory:
    return Memory(scratch, seed, mpi)
