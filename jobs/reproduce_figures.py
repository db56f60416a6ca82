"""The pictures of jobs/reproduce.sh, with matplotlib (the extra `report`).

Their numbers stand in the tables, and those of curves in a CSV file beside them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reproduce_columns import Finished

COLUMNS = 2      # panels beside each other
STACKS = {"parts": ("compute_seconds", "quantize_seconds", "exchange_seconds"),
          "wall": ("offline", "rest", "assign_seconds", "epoch_seconds")}
LABELS = {"compute_seconds": "computing", "quantize_seconds": "quantizing", "exchange_seconds": "exchanging",
          "assign_seconds": "assigning", "epoch_seconds": "training"}

Panels = dict[str, list[Finished]]


def draw(kind: str, title: str, found: Mapping[str, Finished], path: Path) -> Path:
    """Write a picture of finished runs and return where it lies: a panel for each graph, model and number of ranks.

    Parameters
    ----------
    kind : {"throughput", "curves", "sensitivity", "wall", "parts", "ranks"}
    """
    panels = _panels(found, kind)
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(6 * min(len(panels), COLUMNS), 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, min(len(panels), COLUMNS), squeeze=False).ravel()
    for panel, (name, runs) in zip(axes, panels.items(), strict=False):
        panel.set_title(name, fontsize="medium")
        _DRAWN[kind](panel, runs)
    for panel in axes[len(panels):]:
        panel.set_visible(False)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    if kind == "curves":
        _write_curves(path.with_suffix(".csv"), found)
    return path


def _panels(found: Mapping[str, Finished], kind: str) -> Panels:
    panels: Panels = {}
    for finished in found.values():
        run = finished.run
        ranks = "" if kind == "ranks" else f", {run.ranks} ranks"
        panels.setdefault(f"{run.graph.name}, {run.model}{ranks}", []).append(finished)
    return panels


def _vanilla(runs: list[Finished]) -> Finished | None:
    return next((finished for finished in runs if finished.run.method == "vanilla"), None)


def _throughput(panel: Axes, runs: list[Finished]) -> None:
    vanilla = _vanilla(runs)
    base = 1.0 if vanilla is None else 1 / vanilla.median_of("epoch_seconds")
    panel.bar([finished.run.method for finished in runs],
              [1 / finished.median_of("epoch_seconds") / base for finished in runs])
    panel.axhline(1.0, linestyle="--", color="black", linewidth=0.8)
    panel.set_ylabel("epochs a second" if vanilla is None else "throughput, times vanilla")
    panel.tick_params("x", labelrotation=30)


def _curves(panel: Axes, runs: list[Finished]) -> None:
    for finished in runs:
        panel.plot(*finished.curve(), label=finished.run.method, linewidth=1)
    panel.set_xlabel("epoch")
    panel.set_ylabel("validation score (%)")
    panel.legend(fontsize="small")


def _sensitivity(panel: Axes, runs: list[Finished]) -> None:
    names = [finished.run.method for finished in runs]
    panel.errorbar(names, [100 * finished.summary["test_score"] for finished in runs],
                   [100 * finished.summary["test_score_std"] for finished in runs], fmt="o", capsize=3)
    panel.set_ylabel("test score (%)")
    panel.tick_params("x", labelrotation=60)
    speed = panel.twinx()
    speed.plot(names, [1 / finished.median_of("epoch_seconds") for finished in runs], "x", color="tab:orange")
    speed.set_ylabel("epochs a second (×)")


def _parts(panel: Axes, runs: list[Finished]) -> None:
    _stack(panel, runs, {LABELS[column]: [finished.median_of(column) for finished in runs]
                         for column in STACKS["parts"]}, "s an epoch")


def _wall(panel: Axes, runs: list[Finished]) -> None:
    _stack(panel, runs, {"offline": [finished.offline_seconds or 0.0 for finished in runs],
                         "rest": [finished.rest() or 0.0 for finished in runs],
                         **{LABELS[column]: [finished.a_seed(column) for finished in runs]
                            for column in STACKS["wall"][2:]}}, "s of a training")


def _stack(panel: Axes, runs: list[Finished], heights: dict[str, list[float]], unit: str) -> None:
    bottom = [0.0] * len(runs)
    for label, values in heights.items():
        panel.bar([finished.run.method for finished in runs], values, bottom=bottom, label=label)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    panel.set_ylabel(unit)
    panel.legend(fontsize="small")
    panel.tick_params("x", labelrotation=30)


def _ranks(panel: Axes, runs: list[Finished]) -> None:
    for method in dict.fromkeys(finished.run.method for finished in runs):
        mine = sorted((finished.run.ranks, 1 / finished.median_of("epoch_seconds")) for finished in runs
                      if finished.run.method == method)
        panel.plot(*zip(*mine, strict=True), marker="o", label=method)
    panel.set_xlabel("ranks")
    panel.set_ylabel("epochs a second")
    panel.legend(fontsize="small")


_DRAWN = {"throughput": _throughput, "curves": _curves, "sensitivity": _sensitivity, "wall": _wall, "parts": _parts,
          "ranks": _ranks}


def _write_curves(path: Path, found: Mapping[str, Finished]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("graph", "ranks", "model", "method", "epoch", "validation score (%)"))
        for finished in found.values():
            run = finished.run
            writer.writerows((run.graph.name, run.ranks, run.model, run.method, epoch, f"{value:.3f}")
                             for epoch, value in zip(*finished.curve(), strict=True))
