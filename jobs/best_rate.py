"""Prints which of some runs, alike but for the learning rate, has the best validation score: `best_rate.py RUN...`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

NUM_SEEDS = 3      # that rates are compared by; the chosen run may have more


def best_rate(runs: Iterable[Path]) -> Path:
    """The run with the best mean validation score of its first seeds, of equals the one with the largest rate.

    Each is complete and named after its rate.
    """
    return max(runs, key=lambda run: (_validation_score(run), float(run.name)))


def _validation_score(run: Path) -> float:
    results = json.loads((run / "summary.json").read_text())["results"]
    return mean(one["val_score"] for one in results[:NUM_SEEDS])


if __name__ == "__main__":
    print(best_rate(map(Path, sys.argv[1:])))
