"""Differences of runs from a baseline in plain words: points of score, times faster, times fewer bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hpcgnn.report.formats import UNKNOWN, format_number
from hpcgnn.report.run_folder import Run
from hpcgnn.report.score import ScoreKind, score_kind

# Heading and place of each difference in the table of results, every place counted as the columns before it stand.
DIFFERENCES = {"score": ("score against", 1), "time": ("epoch against", 3), "bytes": ("bytes against", 5)}
MAX_BASELINES = 30       # that the page offers; the differences of all pairs of more runs would fill it
SAME = 0.005             # relative difference of seconds or bytes below which two runs are called equal


@dataclass(frozen=True)
class Difference:
    """What a reader sees, what it is sorted by, and whether it is "better", "worse" or neither ("")."""

    text: str
    value: float | None = None
    verdict: str = ""


def differences_from(runs: list[Run], baseline: int) -> list[dict[str, Difference]]:
    """Differences of each run from the run of that number, by the keys of DIFFERENCES."""
    base = runs[baseline]
    kind = score_kind(runs)
    return [{
        "score": _score_difference(run.summary["test_score"], base.summary["test_score"], kind),
        "time": _ratio(run.summary["median_epoch_seconds"], base.summary["median_epoch_seconds"], "faster", "slower"),
        "bytes": _ratio(run.summary["sent_bytes_per_epoch"], base.summary["sent_bytes_per_epoch"], "fewer", "more"),
    } if run is not base else {key: Difference("baseline") for key in DIFFERENCES} for run in runs]


def baselines_of(runs: list[Run]) -> list[int]:
    """Runs that the page offers as baselines: all, or the first ones and the best of many."""
    offered = list(range(min(len(runs), MAX_BASELINES)))
    best = best_run(runs)
    return offered if best is None or best in offered else [*offered, best]


def best_run(runs: list[Run]) -> int | None:
    """Number of the run with the best validation score, since to choose by the test score would spoil it; None where
    none has one.
    """
    scores = {number: run.summary["val_score"] for number, run in enumerate(runs)
              if run.summary["val_score"] is not None and run.summary["test_score"] is not None}
    return score_kind(runs).best(scores) if scores else None


def as_plain(runs: list[Run]) -> dict[str, list[dict[str, dict[str, Any]]]]:
    """Differences of all runs from every offered baseline, for the page's script."""
    return {str(number): [{key: asdict(one) for key, one in differences.items()}
                          for differences in differences_from(runs, number)] for number in baselines_of(runs)}


def _score_difference(score: float | None, base: float | None, kind: ScoreKind) -> Difference:
    if score is None or base is None:
        return Difference(UNKNOWN)
    gap = score - base
    size = kind.show_gap(abs(gap))
    if float(size.split()[0]) == 0:
        return Difference("same", 0.0)
    is_better = (gap < 0) == kind.prefers_low
    return Difference(("+" if gap > 0 else "−") + size, gap, "better" if is_better else "worse")


def _ratio(value: float | None, base: float | None, less: str, more: str) -> Difference:
    """Say how many times less or more a cost is; less is better."""
    if value is None or base is None or not (value and base):
        return Difference(UNKNOWN)
    if abs(value / base - 1) < SAME:
        return Difference("same", 1.0)
    if value < base:
        return Difference(f"{format_number(base / value)}× {less}", value / base, "better")
    return Difference(f"{format_number(value / base)}× {more}", value / base, "worse")
