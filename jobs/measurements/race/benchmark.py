"""`RaceBenchmark` trains contestants with the same trials, and yields one row per contestant: its time to each target.

This process imports neither NumPy nor torch, because a child's peak memory begins with its parent's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from measurements.race.contestants import OWN_MODEL, Contestant, Ours, Peer, RaceSettings
from measurements.race.curve import Settings, Training, Trial, fastest, search
from measurements.race.result import ScoreRow, Target
from measurements.race.runs import Course, train

from hpcgnn.bench.environment import call_in_child, find_tcmalloc
from hpcgnn.bench.epoch import hpcgnn_command, run
from hpcgnn.bench.timing import Begin, say_nothing
from hpcgnn.errors import ConfigError, HpcgnnError

REFERENCE = Ours()       # full-graph training; targets may be shares of its best validation score


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
    """What every contestant tries, and the number of seeds.

    `dropouts` has pairs (of the hidden rows, of the input rows); `batches` are training nodes per batch.
    """

    rates: tuple[float, ...]
    dropouts: tuple[tuple[float, float], ...]
    batches: tuple[int, ...]
    seeds: int

    def choices(self, contestant: Contestant, model: str) -> list[list[dict[str, Any]]]:
        """Values of each setting that `curve.search` tries."""
        pairs = dict.fromkeys((rate, 0.0 if model == OWN_MODEL else of_input)
                              for rate, of_input in self.dropouts)
        return [[{"lr": rate} for rate in self.rates],
                [{"dropout": rate, "input_dropout": of_input} for rate, of_input in pairs],
                *contestant.choices(self.batches)]


@dataclass
class RaceBenchmark:
    """Runs the race.

    Trials are compared on seed 0; those that are first at a target are also trained on the other seeds.
    """

    graph: Graph
    races: list[RaceSettings]
    contestants: list[Contestant]
    targets: tuple[tuple[float, bool], ...]  # ascending; (share of the reference's best score, True), or (score, False)
    trials: Trials
    ranks: int                                                       # 1: one process; else ranks with one thread each
    threads: int
    remarks: list[str] = field(default_factory=list)                 # printed with the table, known before measuring
    begin: Begin = say_nothing
    is_short: bool = False  # trainings end at the highest target; trials that can't be the best end before it
    device: str = "cpu"  # {"cpu", "cuda"}, of our trainings; peers train on the host
    failures: list[str] = field(default_factory=list, init=False)    # trainings that failed, filled by `measure`

    def measure(self) -> Iterator[ScoreRow]:
        """Yield one row per contestant and model; the reference's first, if a target is a share of its score."""
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
        targets, contestants = [Target(number) for number, _ in self.targets], list(self.contestants)
        if self.targets[0][1]:
            # The whole training of the reference sets the targets, so nothing ends it before.
            runner = Runner(self, race, course, [])
            trials = runner.trials_of(REFERENCE)
            best = runner.complete(REFERENCE, max(trials, key=lambda trial: trial.best_score)).best_score
            targets = [Target(share * best, share) for share, _ in self.targets]
            runner = replace(runner, targets=targets)
            yield self._row(group, REFERENCE, trials, runner)
            contestants = [contestant for contestant in contestants if contestant != REFERENCE]
        race = replace(race, enough=targets[-1].score) if self.is_short else race
        for contestant in contestants:
            runner = Runner(self, race, course, targets)
            try:
                yield self._row(group, contestant, runner.trials_of(contestant), runner)
            except HpcgnnError as error:
                self.failures.append(f"{contestant.name}: {error}")

    def _row(self, group: str, contestant: Contestant, trials: list[Trial], runner: Runner) -> ScoreRow:
        firsts = [runner.complete(contestant, fastest(trials, target.score)) for target in runner.targets]
        is_peer = isinstance(contestant, Peer)
        remarks = [*self.remarks, *(peer_remarks(runner.course) if is_peer else [])]
        return ScoreRow(group, contestant.name, trials, runner.targets, firsts, is_peer, remarks)


@dataclass(frozen=True)
class Runner:
    """Trains contestants of one race."""

    benchmark: RaceBenchmark
    race: RaceSettings
    course: Course
    targets: list[Target]

    def trials_of(self, contestant: Contestant) -> list[Trial]:
        """Search a contestant's best settings on seed 0; leave out settings that fail.

        Raises HpcgnnError, with the first reason, if all failed.
        """
        failures: dict[Settings, HpcgnnError] = {}

        def train(settings: Settings, enough: float) -> Training | None:
            seconds = min(self.race.seconds, enough) if self.benchmark.is_short else self.race.seconds
            try:
                return self._train(contestant, settings, 0, replace(self.race, seconds=seconds))
            except HpcgnnError as error:
                failures[settings] = error
                return None

        trials = search(self.benchmark.trials.choices(contestant, self.race.model), train,
                        [target.score for target in self.targets])
        if not trials:
            raise next(iter(failures.values()))
        self.benchmark.failures += [f"{contestant.name}, {settings}: {error}" for settings, error in failures.items()]
        return trials

    def complete(self, contestant: Contestant, trial: Trial) -> Trial:
        """Train a trial on its missing seeds."""
        for seed in range(self.benchmark.trials.seeds):
            if seed not in trial.by_seed:
                trial.by_seed[seed] = self._train(contestant, trial.settings, seed, self.race)
        return trial

    def _train(self, contestant: Contestant, settings: Settings, seed: int, race: RaceSettings) -> Training:
        self.benchmark.begin(f"trains {race.model}: {contestant.name}, {settings}, seed {seed}")
        return train(contestant, race, settings, seed, self.course)


def peer_remarks(course: Course) -> list[str]:
    """Remarks about the peers' processes."""
    allocator = "under tcmalloc" if find_tcmalloc() else \
        "with glibc's allocator, which slows them down: tcmalloc is not installed"
    threads = "one thread each" if course.threads == 1 else f"each peer's processes share {course.threads} threads"
    return [f"peers trained {allocator}; {threads}"]
