"""What the tables of runs share: a score beside a reference's, its standard error, and how lines are printed.

A summary is the summary.json of `hpcgnn train`; scores are fractions there and percent here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev


def score(summary: dict) -> tuple[str, str, str]:
    """Number of seeds, mean test score and standard deviation."""
    return str(len(summary["seeds"])), f"{100 * summary['test_score']:.2f}", f"{100 * summary['test_score_std']:.2f}"


def less(summary: dict, reference: dict | None) -> tuple[str, str]:
    """Mean test score less a reference's, and the standard error of that, where both have two seeds and differ."""
    if reference is None:
        return "-", "-"
    error = "-"
    if summary is not reference and min(len(summary["seeds"]), len(reference["seeds"])) > 1:
        error = f"{100 * math.hypot(_standard_error(summary), _standard_error(reference)):.2f}"
    return f"{100 * (summary['test_score'] - reference['test_score']):+.2f}", error


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, NaN for fewer than two values."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return fmean(values), error


def print_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """As Markdown."""
    for line in (header, ("---",) * len(header), *lines):
        print("| " + " | ".join(line) + " |")


def _standard_error(summary: dict) -> float:
    return summary["test_score_std"] / math.sqrt(len(summary["seeds"]))
