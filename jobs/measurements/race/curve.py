"""`Training` holds the scores of one training over time; `Trial` holds trainings with the same settings by seed.

`search` finds a contestant's best settings.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

NEVER = math.inf
ROUNDING = 1e-9      # tolerance, so that a score reaches the target that was computed from it


@dataclass(frozen=True)
class Point:
    """One evaluation, and the epochs, weight updates, training seconds and bytes sent by all ranks until then.

    Scores are fractions, such as 0.78.
    """

    epoch: float
    updates: int
    seconds: float
    sent_bytes: float
    val_score: float
    test_score: float


@dataclass(frozen=True)
class Training:
    """One training; `points` ascend and are not empty, `peak_bytes` belongs to its largest process."""

    points: list[Point]
    peak_bytes: int
    allocator: str

    @property
    def best(self) -> Point:
        """First point with the best validation score."""
        return max(self.points, key=lambda point: point.val_score)

    @property
    def epoch_seconds(self) -> float:
        return self.points[-1].seconds / self.points[-1].epoch

    @property
    def epoch_bytes(self) -> float:
        return self.points[-1].sent_bytes / self.points[-1].epoch

    def reach(self, score: float) -> Point | None:
        """First point with at least this validation score, or None."""
        return next((point for point in self.points if reaches(point, score)), None)


def reaches(point: Point, score: float) -> bool:
    return point.val_score >= score - ROUNDING


@dataclass(frozen=True)
class Settings:
    """Settings of one trial; `batch` and `fanout` are empty without batches."""

    lr: float
    # dropout, input_dropout: shares of the hidden rows and of the input rows that are dropped in training
    dropout: float = 0.5
    input_dropout: float = 0.5
    batch: int = 0                  # training nodes per step of all processes
    processes: int = 1
    fanout: tuple[int, ...] = ()    # neighbors drawn per node in each layer, the input's first

    @property
    def own_batch(self) -> int:
        """Training nodes in one process's batch."""
        return self.batch // self.processes

    def __str__(self) -> str:
        drawn = f", fanout {','.join(map(str, self.fanout))}" if self.fanout else ""
        batch = f", batch {self.processes} x {self.own_batch:,}" if self.batch else ""
        return f"lr {self.lr:g}, dropout {self.dropout:g}:{self.input_dropout:g}{batch}{drawn}"


@dataclass
class Trial:
    """Trainings with the same settings by seed; results are medians over the seeds."""

    settings: Settings
    by_seed: dict[int, Training] = field(default_factory=dict)

    @property
    def trainings(self) -> list[Training]:
        return [self.by_seed[seed] for seed in sorted(self.by_seed)]

    def median(self, value: Callable[[Training], float]) -> float:
        return statistics.median(value(training) for training in self.trainings)

    def seconds_to(self, score: float) -> float:
        """Median seconds of training to a validation score; NEVER if half of the seeds don't reach it."""
        return self._until(score, "seconds")

    def epochs_to(self, score: float) -> float:
        return self._until(score, "epoch")

    def updates_to(self, score: float) -> float:
        return self._until(score, "updates")

    def _until(self, score: float, what: str) -> float:
        reached = [training.reach(score) for training in self.trainings]
        return statistics.median(NEVER if point is None else getattr(point, what) for point in reached)

    @property
    def best_score(self) -> float:
        """Median of the best validation scores; if two are in the middle, the lower one, which most seeds reach."""
        return statistics.median_low(training.best.val_score for training in self.trainings)

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self.settings), "seeds": {str(seed): asdict(self.by_seed[seed]) for seed in
                                                   sorted(self.by_seed)}}


def fastest(trials: list[Trial], score: float) -> Trial:
    """The trial that is first to reach a validation score on its first seed; among equals, the best by score."""
    def rank(trial: Trial) -> tuple[float, float]:
        first = trial.trainings[0]
        return seconds_to(first, score), -first.best.val_score

    return min(trials, key=rank)


def seconds_to(training: Training, score: float) -> float:
    """Seconds of one training to a validation score; NEVER if it doesn't reach it."""
    point = training.reach(score)
    return NEVER if point is None else point.seconds


def search(choices: list[list[dict[str, Any]]], train: Callable[[Settings, float], Training | None],
           targets: list[float]) -> list[Trial]:
    """Find a contestant's best settings by changing one at a time, until no single change is better.

    The better trial is sooner at the highest target; if both never reach it, at the one below it, and so on; at last it
    has the better score.

    Parameters
    ----------
    choices : for each setting its values to try, as changes of Settings; the first of each make the first trial
    train : callable(settings, enough seconds) -> Training, or None if it failed
        A trial that trains longer than `enough seconds` can't be the best one.
    targets : ascending validation scores

    Returns
    -------
    list of Trial      all that were tried and did not fail, with their first seed
    """
    tried: dict[Settings, Trial | None] = {}

    def rank(settings: Settings, enough: float = NEVER) -> tuple[float, ...]:
        if settings not in tried:
            training = train(settings, enough)
            tried[settings] = None if training is None else Trial(settings, {0: training})
        trial = tried[settings]
        if trial is None:
            return (math.inf,) * (len(targets) + 1)
        first = trial.trainings[0]
        return *(seconds_to(first, score) for score in reversed(targets)), -first.best.val_score

    best = Settings(**{name: value for values in choices for name, value in values[0].items()})
    best_rank, is_better = rank(best), True
    while is_better:
        is_better = False
        for changes in choices:
            for change in changes:
                found = rank(replace(best, **change), best_rank[0] if targets else NEVER)
                if found < best_rank:
                    best, best_rank, is_better = replace(best, **change), found, True
    return [trial for trial in tried.values() if trial is not None]
