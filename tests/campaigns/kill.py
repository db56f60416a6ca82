"""kill: runs of every method that are ended from outside at any moment, start-up and checkpoint writing included.

All processes are gone within the limit; --resume, after one ending or several, leaves weights, moments and metrics of
the run that nobody disturbed. Shards, models and predictions are old or new, never torn.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False     # only the ranks have MPI

from campaigns.calls import STOPPED, last_of_traceback, must_run, sentences, shortened  # noqa: E402
from campaigns.corrupt import plain  # noqa: E402
from campaigns.mpi_choice import environment_of, names_of, use  # noqa: E402
from parallel_run import (  # noqa: E402
    ENDING_LIMIT,
    ParallelRun,
    descendants,
    hpcgnn,
    is_running,
    kill_if_there,
    run_parallel_command,
)

GRAPH = "synthetic:nodes=160,mean_degree=6,classes=3,features=8,signal=2"
EPOCHS = 30
COMMON = ("--model", "gcn", "--layers", 2, "--hidden", 8, "--epochs", EPOCHS, "--eval-every", 7,
          "--checkpoint-every", 1, "--timeout", 6)
TIMED = ("--set", "deterministic=true", "--set", "period=10")
METHODS: dict[str, tuple] = {
    "vanilla": (), "uniform": ("--method", "uniform", "--bits", 4), "random": ("--method", "random"),
    "sylvie": ("--method", "sylvie", "--set", "deterministic=true"),
    "adaqp": ("--method", "adaqp", "--set", "solver=greedy", *TIMED),
    "joint": ("--method", "joint", *TIMED), "pipegcn": ("--method", "pipegcn"), "bns": ("--method", "bns"),
    "sancus": ("--method", "sancus"), "predict": ("--method", "uniform", "--bits", 4, "--set", "predict=previous"),
    "rematerialize": ("--set", "rematerialize=true",), "quantize": ("--quantize", "degree-aware")}
THREE_RANKS = ("vanilla", "adaqp", "pipegcn")
WRITERS = ("preprocess", "model", "predictions")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGSEGV)
STOP_SHARE = 8               # one blow of so many stops a rank for good, and the others' --timeout has to end the run
STOP_SECONDS = 20.0          # the timeout and what the watchdogs need to judge
TARGETS = ("rank", "rank", "first rank", "launcher", "group", "all ranks")
START_SECONDS = 6.0          # in which a run starts, where the machine is busy
FIRST_SECONDS = 0.1          # MPICH's launcher loses a SIGINT of its first 0.05 s, whatever it starts
LIMIT = 180.0


@dataclass(frozen=True)
class Blow:
    """One ending from outside: a signal to somebody, after so many seconds or epochs."""

    number: signal.Signals
    target: str
    seconds: float | None
    epochs: int

    def words(self) -> str:
        moment = f"after {self.seconds:.2f} s" if self.seconds is not None else f"after {self.epochs} epochs"
        return f"{self.number.name} to {self.target} {moment}"


def draw_blow(rng: random.Random, num_ranks: int) -> Blow:
    """A third of them in the first seconds; what goes on from a checkpoint counts its epochs from there."""
    target = rng.choice(TARGETS)
    if target == "rank":
        target = f"rank {rng.randrange(num_ranks)}"
    is_early = rng.randrange(3) == 0
    if rng.randrange(STOP_SHARE) == 0:      # not at the start, which has 300 s whatever --timeout is
        return Blow(signal.SIGSTOP, f"rank {rng.randrange(num_ranks)}", None, rng.randrange(1, EPOCHS // 3))
    return Blow(rng.choice(SIGNALS), "rank 0" if target == "first rank" else target,
                rng.uniform(FIRST_SECONDS, START_SECONDS) if is_early else None, rng.randrange(1, EPOCHS // 3))


class Kill:
    """The campaign; see the module. Another one may have its own graph, trainings and endings."""

    cases = range(2**62)
    graph, common, methods, writers = GRAPH, COMMON, METHODS, WRITERS

    def __init__(self, scratch: Path, seed: int, mpi: str):
        self._seed, self._folder = seed, scratch
        self._mpis = names_of(mpi)
        self._shards = {ranks: scratch / f"shards-{ranks}" for ranks in (1, 2, 3)}
        self._whole: dict[tuple[str, str], Path] = {}
        self._made = scratch / "made"

    def tries_of(self, number: int) -> int:
        """Endings in one case."""
        return 1 if self._kind(number) in self.writers else len(self._blows(number)[1])

    def try_case(self, number: int) -> str | None:
        """A chain of endings, and a run to the end."""
        kind, mpi = self._kind(number), self._mpis[number // 2 % len(self._mpis)]
        use(environment_of(mpi))
        shards = self._shards[1 if kind in self.writers else self._blows(number)[0]]
        if not shards.exists():
            must_run("preprocess", self.graph, "--out", shards, "--parts", shards.name[-1], "--partitioner", "random")
        folder = self._folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        fault = self._write(kind, number, folder) if kind in self.writers else self._train(kind, mpi, number, folder)
        return None if fault is None else f"{kind} on {mpi}: {fault}"

    def close(self) -> None:
        shutil.rmtree(self._folder / "case", ignore_errors=True)

    def _kind(self, number: int) -> str:
        kinds = [*self.methods, *self.writers]
        return kinds[(number * 7 + self._seed) % len(kinds)]

    def _blows(self, number: int) -> tuple[int, list[Blow]]:
        rng = random.Random(f"{self._seed}:{number}")
        ranks = 3 if self._kind(number) in THREE_RANKS else 2
        return ranks, [draw_blow(rng, ranks) for _ in range(rng.choice((1, 2, 2, 3, 3)))]

    def _train(self, method: str, mpi: str, number: int, folder: Path) -> str | None:
        ranks, blows = self._blows(number)
        whole = self._undisturbed(method, mpi, ranks)
        told = []
        for blow in blows:
            told.append(blow.words())
            fault = self._strike(blow, ranks, self._command(method, ranks, folder), folder)
            if fault is not None:
                return f"{'; '.join(told)}: {fault}"
        ended = run_parallel_command(ranks, self._command(method, ranks, folder), folder, LIMIT)
        if ended.status != 0:
            fault = f"can't be resumed: status {ended.status}, {shortened(ended.stderr)}"
        else:
            fault = difference(folder / "run", whole)
        return None if fault is None else f"{'; '.join(told)}: {fault}"

    def _command(self, method: str, ranks: int, folder: Path) -> list:
        # A run that is there goes on, one that is not starts.
        return hpcgnn("train", self._shards[ranks], *self.common, *self.methods[method], "--out", folder / "run",
                       "--resume")

    def _undisturbed(self, method: str, mpi: str, ranks: int) -> Path:
        if (method, mpi) not in self._whole:
            folder = self._folder / f"whole-{method}-{mpi}"
            folder.mkdir()
            ended = run_parallel_command(ranks, self._command(method, ranks, folder), folder, LIMIT)
            if ended.status != 0:
                raise RuntimeError(f"{method} does not run undisturbed: {ended.stderr}")
            self._whole[method, mpi] = folder / "run"
        return self._whole[method, mpi]

    def _strike(self, blow: Blow, ranks: int, command: list, folder: Path) -> str | None:
        """Start, wait for the moment, send the signal, and look at the end."""
        metrics = folder / "run" / "metrics.jsonl"
        before = count_lines(metrics)
        with ParallelRun(ranks, command, folder) as run:
            started = time.monotonic()

            def is_time() -> bool:
                if blow.seconds is not None:
                    return time.monotonic() >= started + blow.seconds
                return count_lines(metrics) >= before + blow.epochs

            while run.process.poll() is None and not is_time() and time.monotonic() < started + LIMIT:
                time.sleep(0.002)
            processes = [run.process.pid, *descendants(run.process.pid)]
            send(blow, run)
            allowed = ENDING_LIMIT + (STOP_SECONDS if blow.number == signal.SIGSTOP else 0.0)
            limit = time.monotonic() + allowed
            while time.monotonic() < limit and any(map(is_running, {*processes, *descendants(run.process.pid)})):
                run.process.poll()
                time.sleep(0.02)
            left = [pid for pid in processes if is_running(pid)]
            if left:
                return f"{len(left)} processes are there {allowed:g} s later"
            try:
                ended = run.end(ENDING_LIMIT)
            except subprocess.TimeoutExpired:
                return "the launcher does not end"
        return fault_of_ending(ended.status, ended.stderr, folder / "run", has_trained=count_lines(metrics) > before)

    def _write(self, kind: str, number: int, folder: Path) -> str | None:
        """End a command that replaces files; old or new is whole, and the command runs again."""
        rng = random.Random(f"{self._seed}:{number}")
        old, new = self._versions(kind)
        shutil.copytree(old, folder / "files")
        seconds = rng.uniform(0.0, START_SECONDS if kind != "preprocess" else 2.0)
        name = rng.choice(SIGNALS)
        command = hpcgnn(*self._writing(kind, folder / "files", 1))
        process = subprocess.Popen(list(map(str, command)), cwd=folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(seconds)
        kill_if_there(process.pid, name)
        try:
            _, said = process.communicate(timeout=ENDING_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"{name.name} after {seconds:.2f} s: no end within {ENDING_LIMIT:g} s"
        what = f"{name.name} after {seconds:.2f} s"
        if "Traceback" in said:
            return f"{what}: traceback: {last_of_traceback(said)}"
        found = content(kind, folder / "files")
        if found not in (content(kind, old), content(kind, new)):
            return f"{what}: neither the old nor the new files are there: {shortened(str(found))}"
        again = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
        if again.returncode != 0:
            return f"{what}: the command does not run again: {shortened(again.stderr)}"
        if content(kind, folder / "files") != content(kind, new):
            return f"{what}: the next run leaves another result"
        return None

    def _versions(self, kind: str) -> tuple[Path, Path]:
        """Folders of the files that a command replaces, and of those that it leaves."""
        folders = tuple(self._made / f"{kind}-{version}" for version in range(2))
        if not folders[0].exists():
            run = self._made / "run"
            if not run.exists():
                must_run("train", self._shards[1], *COMMON[:6], "--epochs", 3, "--out", run)
                must_run("quantize", run, self._shards[1], "--bits", 4, "--out", self._made / "model.h5")
            for version, folder in enumerate(folders):
                folder.mkdir(parents=True)
                must_run(*self._writing(kind, folder, version))
        return folders

    def _writing(self, kind: str, folder: Path, version: int) -> list:
        """A command that writes files of a version into a folder."""
        if kind == "preprocess":
            return ["preprocess", GRAPH, "--out", folder, "--parts", 3, "--partitioner", "random", "--seed", version,
                    "--overwrite"]
        if kind == "model":
            return ["quantize", self._made / "run", self._shards[1], "--bits", 4 + version, "--out",
                    folder / "model.h5"]
        return ["infer", self._made / "run", self._shards[1], "--bits", 4 + version, "--repeat", 1, "--out",
                folder / "predictions.h5"]


def send(blow: Blow, run: ParallelRun) -> None:
    """Give the signal; somebody who is not there yet, or no more, gets none."""
    ranks = run.ranks()
    if blow.target == "launcher":
        kill_if_there(run.process.pid, blow.number)
    elif blow.target == "group":
        for pid in (run.process.pid, *descendants(run.process.pid)):
            kill_if_there(pid, blow.number)
    elif blow.target == "all ranks":
        for pid in ranks.values():
            kill_if_there(pid, blow.number)
    else:
        rank = int(blow.target.split()[1])
        if rank in ranks or blow.number != signal.SIGSTOP:      # nobody ends a launcher that is stopped
            kill_if_there(ranks.get(rank, run.process.pid), blow.number)


def count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def fault_of_ending(status: int, stderr: str, run: Path, has_trained: bool) -> str | None:
    """What is wrong with how a run ended that was struck; a launcher may say of itself what it likes.

    Metrics alone prove no epoch: they are written before the checkpoint, and an earlier life may have ended in between.
    """
    if "Traceback (most recent call last)" in stderr:
        return f"traceback: {last_of_traceback(stderr)}"
    said = sentences(stderr)
    if len(said) > 1:
        return f"{len(said)} sentences: {shortened(' | '.join(said))}"
    if status == 0 and not (run / "summary.json").exists():
        return "status 0, but the run is not complete"
    if status == STOPPED and has_trained and not (run / "checkpoint.h5").exists():
        return "status 75, but there is no checkpoint"
    return None


def difference(run: Path, whole: Path) -> str | None:
    """What a resumed run has that differs from the undisturbed one."""
    from hpcgnn.training.checkpoint import read_checkpoint
    from hpcgnn.training.run_folder import RunFolder

    a, b = read_checkpoint(run / "checkpoint.h5"), read_checkpoint(whole / "checkpoint.h5")
    differing = [name for name in ("model", "best_model", "optimizer")
                 if plain(getattr(a, name)) != plain(getattr(b, name))]
    found, expected = (RunFolder(path).read_metrics() for path in (run, whole))
    epochs = [record["epoch"] for record in found]
    if epochs != list(range(1, EPOCHS + 1)):
        differing.append(f"epochs {shortened(str(epochs), 120)}")
    else:
        differing += differing_epochs([untimed(record) for record in found], [untimed(record) for record in expected])
    return f"the resumed run has other {', '.join(differing)}" if differing else None


def differing_epochs(found: list[dict], expected: list[dict]) -> list[str]:
    """The first epoch whose metrics differ, with the keys that do; nothing where all are equal."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True), start=1):
        if one != other:
            keys = [key for key in one if one[key] != other.get(key)]
            return [f"metrics from epoch {number} on ({', '.join(keys[:4])})"]
    return []


def untimed(record: dict) -> dict:
    """A record of an epoch without seconds and without what a limit of memory wrote to the disk."""
    return {key: value for key, value in record.items()
            if not key.endswith("_seconds") and not key.startswith("disk_") and key != "by_rank"}


def content(kind: str, folder: Path) -> object:
    """What the files of a writer hold, or the sentence that refuses them; names, dates and run ids left out."""
    from hpcgnn.errors import HpcgnnError
    from hpcgnn.lowbit.inference.model_file import read_model
    from hpcgnn.lowbit.inference.predictions import read_predictions
    from hpcgnn.shards.reader import read_partition, verify_shards

    try:
        if kind == "preprocess":
            info = verify_shards(folder)
            return plain([read_partition(folder, part, info.num_parts, info) for part in range(info.num_parts)])
        read = read_model(folder / "model.h5") if kind == "model" else read_predictions(folder / "predictions.h5")
        return plain(read)
    except HpcgnnError as error:
        return str(error)


def open_campaign(scratch: Path, seed: int, mpi: str) -> Kill:
    return Kill(fresh_folder(scratch / "kill"), seed, mpi)


def fresh_folder(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
