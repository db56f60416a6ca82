"""reseal: sealed files whose content is wrong, as a faulty writer would leave them, given to commands on two ranks.

Each is refused in one sentence or does no harm: no signal, no hang, no traceback, no weight that is not finite, and no
file outside of the run folder. The corpus holds mutations that once broke hpcgnn; they are cases -1, -2, …
"""

from __future__ import annotations

import importlib
import json
import os
import random
import resource
import shutil
import sys
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False     # a process that has MPI must not be forked

from campaigns.calls import fault_in, must_run_all, shortened  # noqa: E402
from campaigns.hdf5_mutations import Mutation, apply, draw, inventory  # noqa: E402
from campaigns.made_files import commands_of  # noqa: E402
from campaigns.pairs import PairEnded, run_pair  # noqa: E402

CASE_SECONDS = 30.0
EXTRA_BYTES = 3 << 30      # of address space beside what a rank has at its start
CORPUS = Path(__file__).parent / "corpus" / "reseal.json"
METHODS = (["vanilla"], ["vanilla"], ["uniform", "--bits", "4"],
           ["adaqp", "--set", "period=1", "--set", "solver=greedy"],
           ["sylvie"], ["bns"], ["sancus"], ["random"])
# What commands import when they are called; a forked rank must find it there.
MODULES = ("hpcgnn.cli.train", "hpcgnn.cli.infer", "hpcgnn.cli.quantize", "hpcgnn.run.launch",
           "hpcgnn.training.trainer", "hpcgnn.lowbit.inference.model_source", "hpcgnn.lowbit.inference.predictions",
           "hpcgnn.lowbit.inference.run", "hpcgnn.lowbit.inference.dealt",
           "hpcgnn.lowbit.inference.model_file", "hpcgnn.lowbit.package_shards", "hpcgnn.cli.inspect")


def read_corpus() -> list[Mutation]:
    """Mutations that once broke hpcgnn."""
    return [Mutation(**entry) for entry in json.loads(CORPUS.read_text())]


def make_whole(folder: Path) -> None:
    """The files that are mutated: shards of two parts in each format, a run, its model, predictions and packages.

    A run on one rank gives weights that fit any number of ranks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    must_run_all(commands_of(folder, folder))


def files_in(folder: Path) -> list[str]:
    """Names of all sealed files below a folder; shards more often, since most is done with them."""
    files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.h5"))
             if path.parent.name != "alone"]
    return files + 2 * [name for name in files if name.startswith("shards")]


class Reseal:
    """The campaign; see the module."""

    def __init__(self, scratch: Path, seed: int, mpi: str):
        self._seed, self._whole, self._outside = seed, scratch / "whole", scratch / "outside"
        self._work = self._outside / "work"
        make_whole(self._whole)
        self._files = files_in(self._whole)
        self._things = {name: inventory(self._whole / name) for name in set(self._files)}
        self._corpus = read_corpus()
        self.cases = range(-len(self._corpus), 2**62)
        for name in MODULES:
            importlib.import_module(name)
        self._check_whole_files()

    def _check_whole_files(self) -> None:
        """Every command must take files that nobody changed: where all is refused, nothing is tried."""
        for number, name in enumerate(sorted(set(self._files))):
            ended = self._read(number, Mutation(name, "/", None, "none"))[1]
            if set(ended.statuses) != {0}:
                raise RuntimeError(f"whole {name}: ranks ended with {ended.statuses}: {ended.said}")
            shutil.rmtree(self._outside)

    def try_case(self, number: int) -> str | None:
        """Put the mutated file in its place and run a command that reads it on two ranks."""
        mutation = self._mutation(number)
        arguments, ended = self._read(number, mutation)
        fault = self._fault_of(ended)
        shutil.rmtree(self._outside)
        return None if fault is None else f"{mutation.words()}: {arguments[0]}: {fault}"

    def _read(self, number: int, mutation: Mutation) -> tuple[list[str], PairEnded]:
        place_files(self._whole, self._work, mutation)
        arguments = command_for(number, mutation, self._whole, self._work)
        return arguments, run_pair(lambda rank: rank_body(rank, mutation, arguments, self._work), self._work,
                                   CASE_SECONDS)

    def close(self) -> None:
        shutil.rmtree(self._outside, ignore_errors=True)

    def _mutation(self, number: int) -> Mutation:
        if number < 0:
            return self._corpus[-number - 1]
        rng = random.Random(f"{self._seed}/{number}")
        name = rng.choice(self._files)
        return draw(name, self._things[name], rng)

    def _fault_of(self, ended: PairEnded) -> str | None:
        if ended.is_hanging:
            return f"no end within {CASE_SECONDS:g} s; said: {shortened(ended.said)}"
        left = {*os.listdir(self._outside)} - {"work"} | {*os.listdir(self._work)} - {
            "case", "runs", "out", "stderr-0", "stderr-1"}
        if left:
            return f"wrote outside of its folder: {sorted(left)}"
        worst = min(ended.statuses) if min(ended.statuses) < 0 else max(ended.statuses)
        if worst > 0 and 0 in ended.statuses:
            return f"ranks ended with {ended.statuses}: {shortened(ended.said)}"
        return fault_in(worst, ended.said)


def place_files(whole: Path, work: Path, mutation: Mutation) -> None:
    """A copy of the folder that holds the file, with the file mutated."""
    folder = Path(mutation.file).parent
    (work / "out").mkdir(parents=True)
    (work / "case" / folder).mkdir(parents=True, exist_ok=True)
    for path in (whole / folder).iterdir():
        if path.is_file():
            shutil.copyfile(path, work / "case" / folder / path.name)
    apply(mutation, whole / mutation.file, work / "case" / mutation.file)


def command_for(number: int, mutation: Mutation, whole: Path, work: Path) -> list[str]:
    """A command that reads the file; which, and by which method, follows from the number."""
    rng = random.Random(number)
    folder, case, out = mutation.file.partition("/")[0], work / "case", work / "out"
    if folder.startswith("shards"):
        if rng.randrange(5) == 0:
            batches = ["--clusters", "4"] if rng.randrange(2) else []
            arguments = ["infer", whole / "model.h5", case / folder, "--repeat", "1", "--other-graph", *batches]
        else:
            where = ["--out", out / "run"] if rng.randrange(2) else []
            arguments = ["train", case / folder, "--hidden", "6", "--epochs", "2", "--method", *rng.choice(METHODS),
                         *where]
    elif folder == "run" and rng.randrange(3) == 0:
        arguments = ["quantize", case / "run", whole / "shards", "--out", out / "model.h5", "--other-graph"]
    elif folder == "run":
        arguments = ["train", whole / "shards", "--out", case / "run", "--resume", "--epochs", "5", "--other-graph"]
    elif folder == "model.h5":
        arguments = ["infer", case / "model.h5", whole / "shards", "--repeat", "1", "--other-graph"]
    else:
        arguments = ["read", mutation.file]
    return [str(word) for word in arguments]


def rank_body(rank: int, mutation: Mutation, arguments: list[str], work: Path) -> int:
    """What a rank does; its exit status."""
    from hpcgnn.__main__ import main

    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize() + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    os.environ["OMPI_COMM_WORLD_RANK"] = str(rank)
    if arguments[0] == "read":
        return read_alone(mutation, work / "case", rank)
    try:
        main(arguments)
    except SystemExit as stop:
        status = int(stop.code or 0)
    if status == 0 and arguments[0] == "train" and rank == 0:
        check_runs(work)
    return status


def read_alone(mutation: Mutation, case: Path, rank: int) -> int:
    """Predictions and packages, which both ranks read and rank 0 speaks of."""
    from hpcgnn.errors import HpcgnnError
    from hpcgnn.lowbit.inference.predictions import read_predictions
    from hpcgnn.lowbit.package_shards import read_activations

    try:
        if mutation.file.startswith("predictions"):
            read_predictions(case / mutation.file)
        else:
            read_activations(case / "packages", 0)
    except HpcgnnError as error:
        if rank == 0:
            print(f"hpcgnn: {error}", file=sys.stderr)
        return 1
    return 0


def check_runs(work: Path) -> None:
    """Raise unless all weights of the runs that ended well are finite."""
    from hpcgnn.training.checkpoint import read_checkpoint

    for summary in work.rglob("summary.json"):
        checkpoint = read_checkpoint(summary.parent / "checkpoint.h5")
        if not all(bool(tensor.isfinite().all()) for tensor in checkpoint.model.values()):
            raise ValueError("status 0 with weights that are not finite")


def open_campaign(scratch: Path, seed: int, mpi: str) -> Reseal:
    folder = scratch / "reseal"
    shutil.rmtree(folder, ignore_errors=True)
    return Reseal(folder, seed, mpi)
