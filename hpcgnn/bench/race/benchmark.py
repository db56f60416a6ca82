"""`RaceBenchmark` trains contestants with the same trials, and yields one row per contestant: its time to each target.

This process imports neither NumPy nor torch, because a child's peak memory begins with its parent's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcgnn.bench.environment import call_in_child, find_tcmalloc
from hpcgnn.bench.epoch import hpcgnn_command, run
from hpcgnn.bench.race.contestants import Contestant, Ours, Peer, RaceSettings
from hpcgnn.bench.race.curve import Settings, Trial, fastest
from hpcgnn.bench.race.result import ScoreRow, Target
from hpcgnn.bench.race.runs import Course, train
from hpcgnn.bench.timing import Begin, say_nothing
from hpcgnn.errors import ConfigError, HpcgnnError

REFERENCE = Ours()       # full-graph training; targets are shares of its best validation score


@dataclass(frozen=True)
class Graph:
    """Where the graph comes from.

    `source` is a folder of shards, an .npz archive, or a SOURCE of `hpcgnn preprocess`; `normalize` is that command's
    --normalize-features.
    """

    source: str
    normalize: str = "auto"


@dataclass(frozen=True)
class Trials:
    """Settings that every contestant tries: learning rates, training nodes per batch, and the number of seeds."""

    rates: tuple[float, ...]
    batches: tuple[int, ...]
    seeds: int


@dataclass
class RaceBenchmark:
    """Runs `hpcgnn bench time-to-score`.

    Trials are compared on seed 0; the chosen one is also trained on the other seeds.
    """

    graph: Graph
    races: list[RaceSettings]
    contestants: list[Contestant]
    targets: tuple[float, ...]  # shares of the reference's best validation score, ascending
    trials: Trials
    ranks: int                                                       # 1: one process; else ranks with one thread each
    threads: int
    remarks: list[str] = field(default_factory=list)                 # printed with the table, known before measuring
    begin: Begin = say_nothing
    is_short: bool = False  # trainings other than the reference end with the highest target
    device: str = "cpu"  # {"cpu", "cuda"}, of our trainings; peers train on the host
    failures: list[str] = field(default_factory=list, init=False)    # trainings that failed, filled by `measure`

    def measure(self) -> Iterator[ScoreRow]:
        """Yield one row per contestant and model, the reference's first."""
        with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder:
            shards = self._shards(Path(folder))
            arrays = Path(folder) / "graph.npz"
            facts = call_in_child(self.threads, "export_arrays", shards, arrays)
            parts = call_in_child(self.threads, "count_parts", shards)
            if self.ranks not in (1, parts):
                raise ConfigError(f"{shards} has {parts} parts and --ranks asks for {self.ranks}; leave --ranks out")
            course = Course(shards, arrays, parts, self.threads, Path(folder), self.device)
            for race in self.races:
                yield from self._race(facts["name"], race, course)

    def _shards(self, folder: Path) -> Path:
        source = self.graph.source
        if Path(source).is_dir():
            return Path(source)
        self.begin("makes shards")
        source = f"npz:{source}" if Path(source).is_file() else source
        command = hpcgnn_command("preprocess", source, "--out", folder / "shards", "--parts", self.ranks,
                                 "--normalize-features", self.graph.normalize)
        run(command, os.environ)
        return folder / "shards"

    def _race(self, name: str, race: RaceSettings, course: Course) -> Iterator[ScoreRow]:
        group = f"{name} {race.model} {race.layers} x {race.hidden}"
        runner = Runner(self, race, course)
        reference = runner.trials_of(REFERENCE)
        best = runner.complete(REFERENCE, max(reference, key=lambda trial: trial.best_score)).best_score
        targets = [Target(share, share * best) for share in self.targets]
        first = self._row(group, REFERENCE, reference, targets, runner, None)
        yield first
        if self.is_short:
            runner = Runner(self, replace(race, enough=targets[-1].score), course)
        for contestant in self.contestants:
            if contestant == REFERENCE:
                continue
            try:
                yield self._row(group, contestant, runner.trials_of(contestant), targets, runner, first)
            except HpcgnnError as error:
                self.failures.append(f"{contestant.name}: {error}")

    def _row(self, group: str, contestant: Contestant, trials: list[Trial], targets: list[Target], runner: Runner,
             reference: ScoreRow | None) -> ScoreRow:
        chosen = runner.complete(contestant, fastest(trials, targets[0].score))
        seconds = {} if reference is None else reference.seconds_to_target()
        remarks = list(self.remarks) if reference is None else []
        if isinstance(contestant, Peer):
            remarks += peer_remarks(runner.course)
        return ScoreRow(group, contestant.name, trials, chosen, targets, seconds, remarks)


@dataclass(frozen=True)
class Runner:
    """Trains contestants of one race."""

    benchmark: RaceBenchmark
    race: RaceSettings
    course: Course

    def trials_of(self, contestant: Contestant) -> list[Trial]:
        """Train all settings of a contestant on seed 0; leave out settings that fail.

        Raises HpcgnnError, with the first reason, if all failed.
        """
        tried, trials, failures = self.benchmark.trials, [], {}
        for settings in contestant.candidates(tried.rates, tried.batches):
            trial = Trial(settings)
            try:
                self._train(contestant, trial, 0)
                trials.append(trial)
            except HpcgnnError as error:
                failures[settings] = error
        if not trials:
            raise next(iter(failures.values()))
        self.benchmark.failures += [f"{contestant.name}, {settings}: {error}" for settings, error in failures.items()]
        return trials

    def complete(self, contestant: Contestant, trial: Trial) -> Trial:
        """Train a trial on its missing seeds."""
        for seed in range(self.benchmark.trials.seeds):
            if seed not in trial.by_seed:
                self._train(contestant, trial, seed)
        return trial

    def _train(self, contestant: Contestant, trial: Trial, seed: int) -> None:
        settings: Settings = trial.settings
        self.benchmark.begin(f"trains {self.race.model}: {contestant.name}, {settings}, seed {seed}")
        trial.by_seed[seed] = train(contestant, self.race, settings, seed, self.course)


def peer_remarks(course: Course) -> list[str]:
    """Remarks about the peers' processes."""
    allocator = "under tcmalloc" if find_tcmalloc() else \
        "with glibc's allocator, which slows them down: tcmalloc is not installed"
    threads = "one thread each" if course.threads == 1 else f"each peer's processes share {course.threads} threads"
    return [f"peers trained {allocator}; {threads}"]
