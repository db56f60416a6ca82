"""disk: runs within a limit of memory (--memory), whose tables lie on a disk. They are ended from outside, as in kill,
or the n-th reservation, write, sync or read of a scratch file fails on one rank; see failing_calls.c.

All processes end, with one sentence where a call has failed; nothing is left in the scratch folder; and --resume leaves
weights, moments and metrics of a run without a limit.
"""

from __future__ import annotations

import errno
import json
import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from campaigns.calls import shortened
from campaigns.io import KINDS, LASTING, SHORT, build_library
from campaigns.kill import COMMON, LIMIT, Blow, Kill, draw_blow, fault_of_ending, fresh_folder
from parallel_run import ParallelRun, run_parallel_command

METHODS: dict[str, tuple] = {
    "vanilla": (), "gcn": ("--model", "gcn"), "gat": ("--model", "gat"), "bf16": ("--precision", "bf16"),
    "uniform": ("--method", "uniform", "--bits", 4), "pipegcn": ("--method", "pipegcn"), "steps": ("--steps", "rows:2"),
    "sylvie": ("--method", "sylvie", "--set", "deterministic=true"),
    "stored": ("--set", "store_activations=4")}
# What may meet a scratch file's calls; after a short or an interrupted one it goes on.
ERRORS = {"reserve": (errno.ENOSPC,), "write": (errno.ENOSPC, errno.EIO, SHORT, errno.EINTR),
          "fsync": (errno.EIO,), "read": (errno.EIO, SHORT, errno.EINTR)}
PASSES = (SHORT, errno.EINTR)
TABLES = 8 << 20            # bytes of memory for tables on each rank, a third of them
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}


@dataclass(frozen=True)
class Fault:
    """Call number n of a kind, or all from it on, fails on one rank."""

    rank: int
    kind: str
    n: int
    error: int
    lasts: bool

    def words(self) -> str:
        error = "short" if self.error == SHORT else errno.errorcode[self.error]
        return f"{self.kind} {self.n}{' and all after it' if self.lasts else ''} on rank {self.rank}: {error}"

    @property
    def number(self) -> int:
        return list(KINDS).index(self.kind)


def draw_fault(rng: random.Random, num_ranks: int) -> Fault:
    """The first calls are those of the run's start; later ones lie in its first epochs."""
    kind = rng.choice([*ERRORS, "write"])
    error = rng.choice(ERRORS[kind])
    n = round(2 ** rng.uniform(0, 6))
    return Fault(rng.randrange(num_ranks), kind, n, error, error in LASTING and rng.randrange(2) == 0)


class Disk(Kill):
    """The campaign; see the module."""

    graph = "synthetic:nodes=40000,mean_degree=4,classes=3,features=32,signal=2"
    common = ("--layers", 3, "--hidden", 32, *COMMON[6:])      # of kill: epochs, evaluations, checkpoints, timeout
    methods, writers = METHODS, ()

    def __init__(self, scratch: Path, seed: int, mpi: str):
        super().__init__(scratch, seed, mpi)
        self._library, self._tables = build_library(), fresh_folder(scratch / "scratch")
        self._limits: dict[tuple[str, str], str] = {}
        self._limit: str | None = None      # of the case's method and MPI

    def _blows(self, number: int) -> tuple[int, list[Blow | Fault]]:
        rng = random.Random(f"{self._seed}:{number}")
        return 2, [rng.choice((draw_blow, draw_fault))(rng, 2) for _ in range(rng.choice((1, 2, 2, 3, 3)))]

    def _command(self, method: str, ranks: int, folder: Path) -> list:
        command = super()._command(method, ranks, folder)
        if self._limit is None:
            return command
        return [*command, "--memory", self._limit, "--set", f"scratch={self._tables}"]

    def _undisturbed(self, method: str, mpi: str, ranks: int) -> Path:
        self._limit = None
        whole = super()._undisturbed(method, mpi, ranks)
        if (method, mpi) not in self._limits:
            self._limits[method, mpi] = self._limit_for(method, ranks)
        self._limit = self._limits[method, mpi]
        return whole

    def _limit_for(self, method: str, ranks: int) -> str:
        """A limit with room for some tables: a refusal names what can't leave memory."""
        folder = fresh_folder(self._folder / "limit")
        self._limit = "1M"
        for _ in range(4):
            ended = run_parallel_command(ranks, self._command(method, ranks, folder), folder, LIMIT)
            least = re.search(r"set --memory to more than ([\d.]+) ([kMG]B)", ended.stderr)
            if least is None:
                break
            self._limit = str(round(float(least[1]) * UNITS[least[2]] + ranks * TABLES))
        records = (folder / "run" / "metrics.jsonl").read_text().splitlines() if ended.status == 0 else []
        if not records or not all(json.loads(record)["disk_bytes_spilled"] for record in records):
            raise RuntimeError(f"{method}: no tables on the disk within {self._limit} bytes: {ended.stderr}")
        return self._limit

    def _strike(self, blow: Blow | Fault, ranks: int, command: list, folder: Path) -> str | None:
        fault = self._fail(blow, ranks, command, folder) if isinstance(blow, Fault) else super()._strike(
            blow, ranks, command, folder)
        left = [path.name for path in self._tables.iterdir()]
        return fault or (f"the scratch folder has {', '.join(left)}" if left else None)

    def _fail(self, call: Fault, ranks: int, command: list, folder: Path) -> str | None:
        """Run until a call fails, or to the end, and look at how all ranks end."""
        counts = folder / "counts"
        np.zeros(len(KINDS), np.int64).tofile(counts)
        armed = {"LD_PRELOAD": str(self._library), "HPCGNN_FAILING_CALL":
                 f"{call.rank} {call.number} {call.n} {call.error} {int(call.lasts)} {counts} {self._tables}"}
        with ParallelRun(ranks, command, folder, armed) as run:
            try:
                ended = run.end(LIMIT)
            except subprocess.TimeoutExpired:
                return f"no end within {LIMIT:g} s"
        fault = fault_of_ending(ended.status, ended.stderr, folder / "run", has_trained=False)
        has_failed = np.fromfile(counts, np.int64)[call.number] >= call.n
        must_end = has_failed and call.error not in PASSES
        if fault is None and must_end and (ended.status == 0 or len(ended.sentences) != 1):
            return f"status {ended.status} after the call failed: {shortened(ended.stderr)}"
        if fault is None and not must_end and ended.status != 0:
            return f"status {ended.status} though no call failed for good: {shortened(ended.stderr)}"
        return fault


def open_campaign(scratch: Path, seed: int, mpi: str) -> Disk:
    return Disk(fresh_folder(scratch / "disk"), seed, mpi)
