"""The tables of jobs/benchmark_recipes.sh: `recipe_table.py OUT` reads OUT/GRAPH/MODEL/RECIPE/SEED.

A run's scores are those at its best validation score. Differences are recipe less base of the same seed, so each table
line has the seeds that both have.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from score_table import mean_and_error, print_table

from hpcgnn.report.run_folder import read_run

# Evaluations at the end of a training, or the second half of fewer than 40; nothing is selected among them.
LAST = 20
HEADER = ("model", "recipe", "seeds", "validation", "less base", "test", "less base", f"last {LAST}: mean",
          "worst")
SCORES = re.compile(r"val ([\d.]+) %, test ([\d.]+) %")


@dataclass(frozen=True)
class Scores:
    """Of one training, in percent; `last` are test scores of the last evaluations, none of a correction afterwards."""

    validation: float
    test: float
    last: tuple[float, ...] = ()


def read_scores(run: Path) -> Scores | None:
    """Scores of a run folder, or those that `hpcgnn predict` printed into scores.txt; None if it is not complete."""
    printed = run / "scores.txt"
    if printed.exists():
        found = SCORES.search(printed.read_text())
        return None if found is None else Scores(float(found[1]), float(found[2]))
    if not (run / "summary.json").exists():
        return None
    training = read_run(run, run.name)
    (result,), (curve,) = training.summary["results"], training.curves("test_score")
    evaluated = 100 * curve[~np.isnan(curve)]
    return Scores(100 * result["val_score"], 100 * result["test_score"],
                  tuple(evaluated[-min(LAST, (len(evaluated) + 1) // 2):]))


def row(model: str, recipe: str, found: Mapping[str, Scores], base: Mapping[str, Scores]) -> list[str]:
    """One recipe beside the base, by seed."""
    seeds = sorted(found.keys() & base.keys(), key=int)
    mine, theirs = [found[seed] for seed in seeds], [base[seed] for seed in seeds]
    line = [model, recipe, str(len(seeds))]
    for name in ("validation", "test"):
        values, others = ([getattr(one, name) for one in scores] for scores in (mine, theirs))
        line.append(_with_error(values))
        line.append("-" if found is base else
                    _with_error([value - other for value, other in zip(values, others, strict=True)], "+"))
    last = [score for one in mine for score in one.last]
    return [*line, *([f"{fmean(last):.2f}", f"{min(last):.2f}"] if last else ["-", "-"])]


def _with_error(values: list[float], sign: str = "") -> str:
    mean, error = mean_and_error(values)
    return f"{mean:{sign}.2f}" + ("" if math.isnan(error) else f" ± {error:.2f}")


def table(graph: Path) -> list[list[str]]:
    """Lines of all models of a graph."""
    lines = []
    for model in sorted(path for path in graph.iterdir() if path.is_dir()):
        found: dict[str, dict[str, Scores]] = {}
        for recipe in sorted(model.iterdir(), key=lambda path: (path.name != "base", path.name)):
            scores = {run.name: read_scores(run) for run in recipe.iterdir()}
            found[recipe.name] = {seed: one for seed, one in scores.items() if one is not None}
        lines += [row(model.name, recipe, scores, found["base"]) for recipe, scores in found.items()
                  if scores.keys() & found["base"].keys()]
    return lines


def main() -> None:
    """See the module."""
    print("Percent at the best validation score, mean ± standard error over seeds; differences are paired by seed.")
    for graph in sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir()):
        print(f"\n{graph.name}\n")
        print_table(HEADER, table(graph))


if __name__ == "__main__":
    main()
