"""`Training` holds the scores of one training over time; `Trial` holds trainings with the same settings by seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
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
    """Settings of one trial: the learning rate and, with batches, training nodes per step (else 0) and processes.
    """

    lr: float
    batch: int = 0
    processes: int = 1

    @property
    def own_batch(self) -> int:
        """Training nodes in one process's batch."""
        return self.batch // self.processes

    def __str__(self) -> str:
        return f"lr {self.lr:g}" + (f", batch {self.processes} x {self.own_batch:,}" if self.batch else "")


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
        point = first.reach(score)
        return NEVER if point is None else point.seconds, -first.best.val_score

    return min(trials, key=rank)
