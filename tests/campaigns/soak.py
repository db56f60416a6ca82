"""soak: thousands of epochs on two ranks. Memory and open files stay, losses are finite, bytes are those of the widths.

HPCGNN_SOAK_EPOCHS (10000) is the length of a case. That replicas hold the same weights is asked of hpcgnn itself, which
compares them in every epoch and ends a run in which they differ.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from pathlib import Path

from campaigns.calls import must_run, shortened
from fork_server import served
from parallel_run import ParallelRun

METHODS = {"sylvie + predict": ("--method", "sylvie", "--set", "predict=previous", "--set", "deterministic=true"),
           "adaqp": ("--method", "adaqp", "--set", "deterministic=true", "--set", "period=50")}
DIM = 8            # of features, hidden rows and classes alike: a row of b bits takes b bytes
GRAPH = f"synthetic:nodes=200,mean_degree=6,classes={DIM},features={DIM},signal=2"
PARAMETER_BYTES = {"affine": 4, "rotated": 2}      # of a row: zero point and step, bfloat16 each, or a step alone
ROTATING = ("sylvie", "joint")                     # methods whose rows of 8 columns are rotated
SECONDS_AN_EPOCH = 2.0       # on a machine that is shared
WARM_SHARE = 0.3             # of the epochs, before memory is watched
GROWTH_BYTES = 2 << 20       # a thousand epochs
NOISE_BYTES = 8 << 20        # for all of a run


class Soak:
    """The campaign; see the module."""

    cases = range(len(METHODS))

    def __init__(self, scratch: Path, seed: int, mpi: str):
        self._seed, self._folder = seed, scratch
        self._epochs = int(os.environ.get("HPCGNN_SOAK_EPOCHS", 10000))
        must_run("preprocess", GRAPH, "--out", scratch / "shards", "--parts", 2, "--partitioner", "random")

    def tries_of(self, number: int) -> int:
        """Epochs."""
        return self._epochs

    def try_case(self, number: int) -> str | None:
        """Train, and watch the ranks meanwhile."""
        name = list(METHODS)[number]
        folder = self._folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        command = served(["-m", "hpcgnn", "train", self._folder / "shards", "--model", "gcn", "--layers", 3,
                          "--hidden", DIM, "--epochs", self._epochs, "--eval-every", 50, "--checkpoint-every", 500,
                          "--lr", 0.001, "--seed", self._seed, *METHODS[name], "--out", "run"])
        metrics = folder / "run" / "metrics.jsonl"
        seen: list[tuple[int, int, int]] = []
        with ParallelRun(2, command, folder) as run:
            limit = time.monotonic() + 60 + SECONDS_AN_EPOCH * self._epochs
            while run.process.poll() is None and time.monotonic() < limit:
                seen += [(count_lines(metrics), *measure(pid)) for pid in run.ranks().values()]
                time.sleep(1.0)
            if run.process.poll() is None:
                return f"{name}: no end within {limit:.0f} s"
            ended = run.end()
        if ended.status != 0:
            return f"{name}: status {ended.status}: {shortened(ended.stderr)}"
        fault = fault_of_memory(seen, self._epochs) or fault_of_metrics(metrics, self._epochs, code_of(name))
        return None if fault is None else f"{name}: {fault}"

    def close(self) -> None:
        shutil.rmtree(self._folder / "case", ignore_errors=True)


def count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def measure(pid: int) -> tuple[int, int]:
    """Resident bytes and open files of a process; zeros where it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0, 0


def fault_of_memory(seen: list[tuple[int, int, int]], epochs: int) -> str | None:
    """Whether the ranks grew after they were warm, beyond noise and a little each thousand epochs."""
    # The summary, behind the last epoch, holds all metrics at once.
    warm = [entry for entry in seen if WARM_SHARE * epochs <= entry[0] < epochs and entry[1]]
    if len(warm) < 4:
        return None
    half = len(warm) // 2
    growth = max(entry[1] for entry in warm[half:]) - max(entry[1] for entry in warm[:half])
    # The epochs between the middles of both halves.
    thousands = max((warm[-1][0] - warm[0][0]) / 2000, 1e-3)
    # Files are open while a checkpoint is written; what is open between checkpoints must not grow.
    fewest = [min(entry[2] for entry in part) for part in (warm[:half], warm[half:])]
    print(f"resident memory: {growth / thousands / 2**20:+.2f} MB a thousand epochs, {fewest[0]}, later "
          f"{fewest[1]} open files", flush=True)
    if growth > NOISE_BYTES + thousands * GROWTH_BYTES:
        return f"ranks grew by {growth / 2**20:.1f} MB in {1000 * thousands:.0f} epochs"
    return f"open files grew from {fewest[0]} to {fewest[1]}" if fewest[1] > fewest[0] else None


def code_of(name: str) -> str:
    """What a method of METHODS makes of its rows, by its first word."""
    return "rotated" if name.split()[0] in ROTATING else "affine"


def fault_of_metrics(metrics: Path, epochs: int, code: str) -> str | None:
    """Whether every epoch is there, its loss is finite, and its bytes are those of its widths."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    if [record["epoch"] for record in records] != list(range(1, epochs + 1)):
        return f"{len(records)} epochs are recorded, expected {epochs}"
    for record in records:
        rows = {int(width): count for width, count in record["width_histogram"].items()}
        payload = sum(width * count * DIM // 8 for width, count in rows.items())
        parameters = sum(PARAMETER_BYTES[code] * count for width, count in rows.items() if width <= 8)
        if record["loss"] is None or not math.isfinite(record["loss"]):
            return f"the loss of epoch {record['epoch']} is {record['loss']}"
        if (record["sent_bytes_payload"], record["sent_bytes_parameters"]) != (payload, parameters):
            return (f"epoch {record['epoch']} sent {record['sent_bytes_payload']} and "
                    f"{record['sent_bytes_parameters']} bytes, its widths {rows} make {payload} and {parameters}")
    return None


def open_campaign(scratch: Path, seed: int, mpi: str) -> Soak:
    return Soak(scratch, seed, mpi)
