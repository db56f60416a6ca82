"""io: the n-th write, fsync, rename, open, … or allocation of a command fails, for every n; see failing_calls.c.

The command ends in one sentence and another status than 0, what was there is there, and the same command works next.
A call whose failure changes nothing (an interrupted or short write, a file that was only looked for) may pass.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False     # children start MPI

from campaigns.calls import fault_in, shortened  # noqa: E402
from campaigns.forked import run_forked  # noqa: E402
from campaigns.runner import ROOT  # noqa: E402
from campaigns.workplace import COMMANDS, MODULES, Workplace, start  # noqa: E402

CASE_SECONDS = 60.0
LARGE_BYTES = 1 << 14       # smaller allocations are Python's own, of which there are millions
SHORT = -1
LIBRARY = ROOT / "build" / "campaigns" / "failing_calls.so"
# The order of the enumeration in failing_calls.c, with the errors that each may meet.
KINDS: dict[str, tuple[int, ...]] = {
    "write": (errno.ENOSPC, errno.EIO, SHORT, errno.EINTR), "fsync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EACCES, errno.EIO), "open": (errno.EACCES, errno.EMFILE, errno.EIO), "unlink": (errno.EACCES,),
    "truncate": (errno.EIO,), "mkdir": (errno.ENOSPC,), "read": (errno.EIO,), "close": (errno.EIO,),
    "allocate": (errno.ENOMEM,), "reserve": (errno.ENOSPC,)}
LASTING = (errno.ENOSPC, errno.ENOMEM)      # a disk or a memory that is full stays full, or not
MUST_BE_TOLD = ("fsync", "rename")      # and writes that fail


@dataclass(frozen=True)
class Failing:
    """Call number n of a kind, or all from it on, fails in a command."""

    command: str
    kind: str
    n: int
    error: int
    is_lasting: bool

    def words(self) -> str:
        error = "short" if self.error == SHORT else errno.errorcode[self.error]
        return f"{self.command}: {self.kind} {self.n}{' and all after it' if self.is_lasting else ''}: {error}"

    @property
    def must_be_told(self) -> bool:
        return self.kind in MUST_BE_TOLD or (self.kind == "write" and self.error not in (SHORT, errno.EINTR))


def build_library() -> Path:
    """The failing calls as a library that is preloaded; replaced at once, since another campaign may use it."""
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    source, made = Path(__file__).with_name("failing_calls.c"), LIBRARY.with_suffix(f".{os.getpid()}")
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-Wall", "-o", made, source, "-ldl"],
                   check=True)
    os.replace(made, LIBRARY)
    return LIBRARY


def prepare() -> None:
    """Start this process anew with the failing calls before the C library's."""
    if "HPCGNN_FAILING_CALLS" in os.environ:
        return
    build_library()
    os.environ.update(HPCGNN_FAILING_CALLS="1", LD_PRELOAD=str(LIBRARY), PYTHONFAULTHANDLER="1")
    os.execv(sys.executable, [sys.executable, "-m", "campaigns.run", *sys.argv[1:]])


def dies_in_hdf5(status: int | None, said: str) -> bool:
    """Whether a process died inside HDF5, which reads through a null pointer where an allocation was refused."""
    frames = [line for line in said.partition("Current thread")[2].splitlines() if line.startswith("  File ")]
    return status == -signal.SIGSEGV and bool(frames) and "/h5py/" in frames[0]


class Io:
    """The campaign; see the module."""

    def __init__(self, scratch: Path, seed: int, mpi: str):
        self._workplace = Workplace.make(scratch)
        for name in MODULES:
            importlib.import_module(name)
        self._calls = ctypes.CDLL(None)
        self._page = mmap.mmap(-1, mmap.PAGESIZE)      # where a child counts and its parent reads
        self._counts = (ctypes.c_long * len(KINDS)).from_buffer(self._page)
        self._failing = self._enumerate()
        random.Random(seed).shuffle(self._failing)
        self.cases = range(len(self._failing))

    def try_case(self, number: int) -> str | None:
        """Run the command with its failing call, look at what is left, and run it again."""
        failing, place = self._failing[number], self._workplace.place
        status, said = self._run(failing.command, lambda: self._arm(failing))
        fault = self._fault_of(failing, status, said)
        if fault is None and status != 0:
            fault = self._workplace.what_is_lost(failing.command)
            again, complaint = run_forked(lambda: start(self._workplace.command(failing.command)), place, CASE_SECONDS)
            if fault is None and again != 0:
                fault = f"the next run ends with {again}: {shortened(complaint)}"
        return None if fault is None else f"{failing.words()}: {fault}"

    def close(self) -> None:
        shutil.rmtree(self._workplace.place, ignore_errors=True)

    def _run(self, command: str, arm: Callable[[], None]) -> tuple[int | None, str]:
        self._workplace.renew()
        ctypes.memset(self._counts, 0, ctypes.sizeof(self._counts))
        return run_forked(lambda: start(self._workplace.command(command), arm), self._workplace.place, CASE_SECONDS)

    def _fault_of(self, failing: Failing, status: int | None, said: str) -> str | None:
        if status is None:
            return f"no end within {CASE_SECONDS:g} s"
        if failing.kind == "allocate" and dies_in_hdf5(status, said):
            print(f"io: {failing.words()}: HDF5 itself dies, which no caller can help; looking at what is left")
            return None
        fault = fault_in(status, said)
        has_failed = self._counts[list(KINDS).index(failing.kind)] >= failing.n
        if fault is None and status == 0 and failing.must_be_told and has_failed:
            return "status 0, though the call failed"
        return fault

    def _arm(self, failing: Failing) -> None:
        self._calls.failing_calls_arm(
            os.fsencode(self._workplace.place), list(KINDS).index(failing.kind), ctypes.c_long(failing.n),
            failing.error, int(failing.is_lasting), ctypes.c_size_t(LARGE_BYTES), self._counts)

    def _enumerate(self) -> list[Failing]:
        """Every call that each command makes, once with each error that it may meet."""
        found = []
        for command in COMMANDS:
            for (kind, errors), count in zip(KINDS.items(), self._count(command), strict=True):
                found += [Failing(command, kind, n, error, lasts) for n in range(1, count + 1) for error in errors
                          for lasts in ((False, True) if error in LASTING else (False,))]
        return found

    def _count(self, command: str) -> list[int]:
        """How many calls of each kind a command makes that nobody disturbs."""
        status, said = self._run(command, lambda: self._arm(Failing(command, "write", 2**62, errno.EIO, False)))
        if status != 0:
            raise RuntimeError(f"{command} does not run undisturbed: {said}")
        return list(self._counts)


def open_campaign(scratch: Path, seed: int, mpi: str) -> Io:
    return Io(scratch, seed, mpi)
