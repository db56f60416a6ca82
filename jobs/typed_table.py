"""The tables of jobs/benchmark_typed.sh: `typed_table.py RESULTS` reads one JSON object per line and training."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

from score_table import mean_and_error, print_table

SIDES = ("hpcgnn", "PyG")
TUNING_SEEDS = (100,)      # they choose recipes and count nowhere else
LAST = 10                  # evaluations at the end of a training; nothing is selected among them
KEY = ("graph", "split", "model", "side", "recipe", "seed")
SCORES = ("micro", "macro")


class Results:
    """The file of results, one JSON object per training."""

    def __init__(self, path):
        self.path = Path(path)
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.rows = [json.loads(line) for line in lines]

    def find(self, **wanted):
        return [row for row in self.rows if all(row[name] == value for name, value in wanted.items())]

    def add(self, row, is_writer):
        self.rows.append(row)
        if is_writer:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def best_recipe(self, graph, model, side):
        """The recipe with the best mean validation score in the trainings that choose it."""
        tried = defaultdict(list)
        for row in self.find(graph=graph, model=model, side=side):
            if row["seed"] in TUNING_SEEDS:
                tried[row["recipe"]].append(row["val"])
        return max(tried, key=lambda recipe: fmean(tried[recipe]), default="-")


def table(results):
    """Print scores by graph, the chosen recipes, and what two ranks score."""
    groups = sorted({(row["graph"], row["model"]) for row in results.rows})
    print("Percent: mean ± standard deviation over the seeds, the worst seed in brackets; last "
          f"{LAST}: mean and worst test accuracy of each training's last {LAST} evaluations. Less PyG: mean ± standard "
          "error of the differences, paired by seed.")
    lines = []
    for graph, model in groups:
        for split in (20, 40, 60):
            sides = [{row["seed"]: row for row in results.find(graph=graph, model=model, split=split, ranks=1,
                                                               side=side) if row["seed"] not in TUNING_SEEDS}
                     for side in SIDES]
            seeds = sorted(sides[0].keys() & sides[1].keys())
            if not seeds:
                continue
            line = [graph, str(split), model, str(len(seeds))]
            for score in SCORES:
                values = [[100 * side[seed][score] for seed in seeds] for side in sides]
                mean, error = mean_and_error([ours - theirs for ours, theirs in zip(*values, strict=True)])
                line += [*map(spread, values), f"{mean:+.2f}" + f" ± {error:.2f}" * (len(seeds) > 1)]
            line += [f"{100 * fmean(side[seed]['last'] for seed in seeds):.2f}, "
                     f"{100 * min(side[seed]['worst'] for seed in seeds):.2f}" for side in sides]
            lines.append(line)
    print()
    print_table(("graph", "labels a class", "model", "seeds", *(f"{score}-F1, {what}" for score in SCORES
                 for what in ("hpcgnn", "PyG", "less PyG")), f"last {LAST}: hpcgnn", "PyG"), lines)
    print()
    print_table(("graph", "model", *(f"recipe, {side}" for side in SIDES)),
                ([graph, model, *(results.best_recipe(graph, model, side) for side in SIDES)]
                 for graph, model in groups))
    print()
    several = [(row, alone) for row in results.rows if row["ranks"] > 1
               for alone in results.find(**{**{name: row[name] for name in KEY}, "ranks": 1})]
    print_table(("graph", "labels a class", "model", "ranks", *(f"{score}-F1, {ranks}" for score in SCORES
                 for ranks in ("one rank", "several"))),
                ([row["graph"], str(row["split"]), row["model"], str(row["ranks"]),
                  *(f"{100 * one[score]:.2f}" for score in SCORES for one in (alone, row))]
                 for row, alone in several))


def spread(values):
    return f"{fmean(values):.2f} ± {stdev(values):.2f} ({min(values):.2f})" if len(values) > 1 else f"{values[0]:.2f}"


if __name__ == "__main__":
    table(Results(sys.argv[1]))
