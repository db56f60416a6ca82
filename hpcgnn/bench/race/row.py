"""ScoreRow holds what one contestant of `hpcgnn bench time-to-score` has reached: a row of the table and bench.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hpcgnn.bench.race.curve import Trial


@dataclass(frozen=True)
class Target:
    """Holds a validation score to reach, and which share of the best one of full-graph training it is."""

    share: float
    score: float

    def __str__(self) -> str:
        return f"{100 * self.share:g} %"


@dataclass(frozen=True)
class ScoreRow:
    """Holds one contestant.

    Attributes
    ----------
    group, case : str                     graph and model, and the contestant's name
    trials : list of Trial                all that were tried
    chosen : Trial                        the one that is shown: the first to reach the first target, then by score
    targets : list of Target, ascending
    reference : dict share -> float       seconds of full-graph training; empty in its own row
    remarks : list of str
    """

    group: str
    case: str
    trials: list[Trial]
    chosen: Trial
    targets: list[Target]
    reference: dict[float, float]
    remarks: list[str] = field(default_factory=list)

    def median(self) -> float:
        """Return median seconds of an epoch."""
        return self.chosen.median(lambda training: training.epoch_seconds)

    def seconds_to_target(self) -> dict[float, float]:
        """Return median seconds to each target by its share; infinite where it is not reached."""
        return {target.share: self.chosen.seconds_to(target.score) for target in self.targets}

    def ratio(self, target: Target) -> float | None:
        """Return seconds to a target over those of full-graph training; None where either never reaches it."""
        ours, theirs = self.chosen.seconds_to(target.score), self.reference.get(target.share, math.inf)
        return ours / theirs if math.isfinite(ours) and math.isfinite(theirs) and theirs > 0 else None

    def as_record(self) -> dict[str, Any]:
        """Return everything as bench.json holds it, with the curves of all trials; null where a target is never
        reached.
        """
        chosen, best = self.chosen, self.best_scores()
        return {"group": self.group, "case": self.case, "unit": "s", "chosen": str(chosen.settings),
                "epoch_seconds": self.median(), "epoch_bytes": self.epoch_bytes(), "peak_bytes": self.peak_bytes(),
                "val_score": best[0], "test_score": best[1],
                "targets": [{"share": target.share, "score": target.score,
                             "seconds": finite(chosen.seconds_to(target.score)),
                             "epochs": finite(chosen.epochs_to(target.score)),
                             "updates": finite(chosen.updates_to(target.score)), "ratio": self.ratio(target)}
                            for target in self.targets],
                "remarks": self.remarks, "trials": [trial.as_record() for trial in self.trials]}

    def best_scores(self) -> tuple[float, float]:
        """Return the median best validation score, and the median test score at it."""
        return self.chosen.best_score, self.chosen.median(lambda training: training.best.test_score)

    def epoch_bytes(self) -> float:
        """Return median bytes that an epoch sends."""
        return self.chosen.median(lambda training: training.epoch_bytes)

    def peak_bytes(self) -> float:
        """Return the most bytes that a process had, over the seeds."""
        return max(training.peak_bytes for training in self.chosen.trainings)


def finite(value: float) -> float | None:
    """Return a number, None for one that is infinite."""
    return value if math.isfinite(value) else None
