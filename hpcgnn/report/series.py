"""The values of runs by epoch as plain lists, thinned and rounded, for the page's curves; and the runs' kind of score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.report.formats import LOW_SCORES, UNKNOWN
from hpcgnn.report.run_folder import Run
from hpcgnn.report.summary import SENT

TITLES = {"macro_f1": "macro-F1", "micro_f1": "micro-F1", "roc_auc": "ROC AUC", "mae": "MAE", "rmse": "RMSE",
          "r2": "R²"}
NO_SHARES = ("r2", *LOW_SCORES)      # for runs without this in their summary


@dataclass(frozen=True)
class ScoreKind:
    """A score's name, whether it is a share from 0 to 1 (shown in percent), and whether less is better."""

    name: str = "score"
    is_share: bool = True
    prefers_low: bool = False

    @property
    def title(self) -> str:
        """The name as a reader knows it: micro-F1 for micro_f1."""
        return TITLES.get(self.name, self.name)

    @property
    def unit(self) -> str:
        return "%" if self.is_share else ""

    @property
    def scale(self) -> int:
        return 100 if self.is_share else 1

    @property
    def heading(self) -> str:
        return self.title + (f" ({self.unit})" if self.unit else "")

    def show(self, score: float | None, deviation: float | None = None, with_unit: bool = False) -> str:
        """A score, with its deviation over seeds if there is one: 81.23 ± 0.41."""
        if score is None or np.isnan(score):      # a split without answers
            return UNKNOWN
        text = f"{100 * score:.2f}" if self.is_share else f"{score:.4g}"
        if deviation:
            text += f" ± {100 * deviation:.2f}" if self.is_share else f" ± {deviation:.2g}"
        return f"{text} {self.unit}".rstrip() if with_unit else text

    def show_gap(self, gap: float) -> str:
        """Distance of two scores: 1.20 points, or a number."""
        return f"{100 * gap:.2f} points" if self.is_share else f"{gap:.3g}"

    def best(self, scores: dict[Any, float]) -> Any:
        return (min if self.prefers_low else max)(scores, key=scores.get)


def score_kind(runs: list[Run]) -> ScoreKind:
    """The kind of score that all runs share; a score without a name if they differ."""
    kinds = {kind for run in runs if (kind := _kind_of(run)).name != "score"}
    return kinds.pop() if len(kinds) == 1 else ScoreKind(is_share=all(kind.is_share for kind in kinds))


def _kind_of(run: Run) -> ScoreKind:
    summary, name = run.summary, str(run.summary["score_name"])
    return ScoreKind(name, bool(summary.get("score_is_share", name not in NO_SHARES)),
                     bool(summary.get("score_prefers_low", name in LOW_SCORES)))


MAX_POINTS = 1500      # points of a curve; more can't be told apart on a screen
DIGITS = 6             # significant digits of a value on the page


def kept_epochs(run: Run) -> np.ndarray:
    """Columns of `run.curves` that are drawn, (n,) int64.

    All epochs; or every k-th and the last, counted apart among the evaluated epochs and among the others.
    """
    evaluated = np.isfinite(run.curves("test_score")).any(axis=0)
    return np.union1d(_thinned(np.flatnonzero(evaluated)), _thinned(np.flatnonzero(~evaluated))).astype(np.int64)


def is_thinned(run: Run) -> bool:
    return len(kept_epochs(run)) < len(run.epochs)


def positions(run: Run) -> dict[str, list[float | None]]:
    """Positions of the drawn epochs on each horizontal axis: epoch, seconds of training and bytes sent so far.

    Seconds and bytes are means over the seeds that got so far.
    """
    kept = kept_epochs(run)
    sent = total_bytes(run)
    sent = np.where(np.isnan(run.curves("loss")) & np.isnan(sent), np.nan, np.nancumsum(sent, axis=1))
    return {"epoch": run.epochs[kept].tolist(), "seconds": rounded(mean_over_seeds(run.elapsed_seconds())[0][kept]),
            "bytes": rounded(mean_over_seeds(sent)[0][kept])}


def total_bytes(run: Run) -> np.ndarray:
    """Bytes sent in each epoch by all ranks, (num_seeds, num_epochs) float64, NaN if not recorded."""
    first, *others = (run.curves(f"sent_bytes_{part}") for part in SENT)
    return first + sum(np.nan_to_num(part) for part in others)


def mean_over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column over the seeds that have it; NaN and 0 if none has."""
    present = np.isfinite(values)
    count = present.sum(axis=0)
    mean = np.where(present, values, 0).sum(axis=0) / np.where(count, count, np.nan)
    squares = np.where(present, (values - mean) ** 2, 0).sum(axis=0)
    return mean, np.sqrt(squares / np.maximum(count - 1, 1))


def curve(number: int, run: Run, values: np.ndarray, scale: float = 1.0, label: str = "") -> dict[str, Any] | None:
    """One line of a chart: a run's mean over seeds at the drawn epochs, and its deviation over several seeds.

    `values` are of `Run.curves`; `label` tells several lines of one run apart. None if there is no value.
    """
    mean, deviation = mean_over_seeds(scale * values)
    kept = kept_epochs(run)
    if not np.isfinite(mean[kept]).any():
        return None
    found = {"run": number, "y": rounded(mean[kept])}
    if len(values) > 1:
        found["band"] = rounded(np.where(np.isfinite(mean), deviation, np.nan)[kept])
    return {**found, "label": label} if label else found


def largest_of_ranks(run: Run, key: str) -> np.ndarray:
    """Largest value of one quantity over the ranks, (num_seeds, num_epochs), NaN if unknown."""
    per_epoch = {(record.get("seed", 0), record["epoch"]): max(record["by_rank"][key])
                 for record in run.records if (record.get("by_rank") or {}).get(key)}
    return np.array([[per_epoch.get((seed, epoch), np.nan) for epoch in run.epochs.tolist()] for seed in run.seeds])


def rounded(values: np.ndarray) -> list[float | None]:
    return [None if not np.isfinite(value) else _short(value) for value in np.asarray(values, float).tolist()]


def _short(value: float) -> float | int:
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _thinned(columns: np.ndarray) -> np.ndarray:
    step = -(-len(columns) // MAX_POINTS)
    return columns if step <= 1 else np.append(columns[:-1:step], columns[-1])
