"""adversarial: hostile sources and arguments for `hpcgnn preprocess`. Each ends in one sentence and without shards, or
with shards that an independent reading of the source finds right, and on which an epoch can be trained.

Cases -1, -2, … are made by hand; those from 0 on are drawn.
"""

from __future__ import annotations

import importlib
import os
import random
import resource
import shutil
from pathlib import Path

import mpi4py
import numpy as np

mpi4py.rc.initialize = False     # a process that has MPI must not be forked; a child that trains starts it

from campaigns import hostile_archives, hostile_texts  # noqa: E402
from campaigns.calls import Ended, call, fault_in, shortened  # noqa: E402
from campaigns.forked import Worker  # noqa: E402
from campaigns.hostile_archives import Hostile, Truth  # noqa: E402

CASE_SECONDS = 60.0
EXTRA_BYTES = 3 << 29
MODULES = ("hpcgnn.cli.preprocess", "hpcgnn.cli.train", "hpcgnn.run.launch", "hpcgnn.training.trainer",
           "hpcgnn.data.ogb")


class Adversarial:
    """The campaign; see the module."""

    def __init__(self, scratch: Path, seed: int, mpi: str):
        self._seed, self._folder = seed, scratch
        self._by_hand = [*hostile_archives.made_by_hand(), *hostile_texts.made_by_hand()]
        self.cases = range(-len(self._by_hand), 2**62)
        for name in MODULES:
            importlib.import_module(name)
        self._worker = Worker(self._preprocess, CASE_SECONDS, is_fresh=True)

    def try_case(self, number: int) -> str | None:
        """In a process of its own: write the source, preprocess it, and look at what became of it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "source").mkdir(parents=True)
        (self._folder / "work").mkdir()
        fault = self._worker.ask(number)
        return None if fault is None else f"{self._hostile(number).name!r}: {fault}"

    def close(self) -> None:
        self._worker.close()

    def _hostile(self, number: int) -> Hostile:
        if number < 0:
            return self._by_hand[-number - 1]
        return hostile_archives.generated(random.Random(f"{self._seed}/{number}"))

    def _preprocess(self, number: int) -> str | None:
        hostile, work = self._hostile(number), self._folder / "work"
        arguments = hostile.write(self._folder / "source")
        os.chdir(work)
        limit_memory()
        defaults = [word for name, value in (("--out", "shards"), ("--parts", "1")) if name not in arguments
                    for word in (name, value)]
        ended = call("preprocess", *arguments, *defaults)
        fault = fault_in(ended.status, ended.stderr)
        if fault is not None:
            return fault
        if ended.status != 0:
            return left_behind(work, ended)
        if hostile.truth is None:
            return f"status 0, though the source means nothing: {shortened(ended.stdout)}"
        if isinstance(hostile.truth, Truth):
            fault = compare(work / "shards", hostile.truth)
        return fault or train_an_epoch(arguments)


def limit_memory() -> None:
    """What a source announces must not be taken at its word."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize() + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def left_behind(work: Path, ended: Ended) -> str | None:
    """Files that a refused source has left."""
    left = [str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()]
    return f"refused, but left {left[:3]}: {shortened(ended.stderr)}" if left else None


def compare(folder: Path, truth: Truth) -> str | None:
    """Hold shards of one part against what the source means."""
    from hpcgnn.shards.reader import read_graph_info, read_partition

    info = read_graph_info(folder)
    part = read_partition(folder, 0, 1, info)
    node = part.inner_id
    target = np.repeat(node, np.diff(part.indptr))
    arcs = np.array(sorted(zip(node[part.indices].tolist(), target.tolist(), strict=True))).reshape(-1, 2)
    order = np.argsort(node)
    faults = []
    if not np.array_equal(arcs, truth.arcs):
        faults.append("arcs")
    if not np.array_equal(part.labels[order], truth.labels):
        faults.append("labels")
    if truth.masks is not None and not all(np.array_equal(found[order], mask) for found, mask in zip(
            (part.train_mask, part.val_mask, part.test_mask), truth.masks, strict=True)):
        faults.append("masks")
    if truth.features is not None and not np.array_equal(part.features[order], truth.features):
        faults.append("features")
    if len(node) != info.num_nodes or (truth.labels.ndim == 1 and info.num_classes <= truth.labels.max()):
        faults.append("counts")
    return f"shards have other {', '.join(faults)} than the source" if faults else None


def train_an_epoch(arguments: list[str]) -> str | None:
    """What is accepted can be trained, in a folder below runs/, or is refused in one sentence."""
    from mpi4py import MPI

    shards = arguments[arguments.index("--out") + 1] if "--out" in arguments else "shards"
    before = set(os.listdir("..")), set(os.listdir("."))
    MPI.Init_thread(MPI.THREAD_SERIALIZED)
    ended = call("train", "--epochs", "1", "--hidden", "4", "--", shards)
    fault = fault_in(ended.status, ended.stderr)
    if fault is not None:
        return f"train after it: {fault}"
    left = (set(os.listdir("..")) - before[0]) | (set(os.listdir(".")) - before[1] - {"runs"})
    return f"train wrote beside runs/: {sorted(left)}" if left else None


def open_campaign(scratch: Path, seed: int, mpi: str) -> Adversarial:
    return Adversarial(scratch / "adversarial", seed, mpi)
