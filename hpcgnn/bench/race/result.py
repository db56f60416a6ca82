"""The output of `hpcgnn bench time-to-score`: a table with one row per contestant (`ScoreRow`), and the curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from hpcgnn.bench.race.curve import Point, Settings, Trial
from hpcgnn.bench.result import BenchmarkResult
from hpcgnn.run.output import number_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Target:
    """A validation score to reach, and its share of full-graph training's best score."""

    share: float
    score: float

    def __str__(self) -> str:
        return f"{100 * self.share:g} %"


@dataclass(frozen=True)
class ScoreRow:
    """One contestant."""

    # group, case: graph and model, and the contestant's name
    group: str
    case: str
    trials: list[Trial]
    chosen: Trial                    # the shown trial: first to reach the first target, then best by score
    targets: list[Target]            # ascending
    reference: dict[float, float]    # dict share -> float, seconds of full-graph training; empty in that training's row
    remarks: list[str] = field(default_factory=list)

    def median(self) -> float:
        """Median seconds per epoch."""
        return self.chosen.median(lambda training: training.epoch_seconds)

    def seconds_to_target(self) -> dict[float, float]:
        """Median seconds to each target by its share; infinite if it is not reached."""
        return {target.share: self.chosen.seconds_to(target.score) for target in self.targets}

    def ratio(self, target: Target) -> float | None:
        """Seconds to a target, divided by full-graph training's; None if either never reaches it."""
        ours, theirs = self.chosen.seconds_to(target.score), self.reference.get(target.share, math.inf)
        return ours / theirs if math.isfinite(ours) and math.isfinite(theirs) and theirs > 0 else None

    def as_record(self) -> dict[str, Any]:
        # bench.json has null for a target that is never reached.
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
        """Median best validation score, and median test score at it."""
        return self.chosen.best_score, self.chosen.median(lambda training: training.best.test_score)

    def epoch_bytes(self) -> float:
        return self.chosen.median(lambda training: training.epoch_bytes)

    def peak_bytes(self) -> float:
        return max(training.peak_bytes for training in self.chosen.trainings)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


NOT_REACHED = "–"
CAPTION = ("s to: seconds of training (epochs), evaluations not counted; –: not reached. lr, NxB: of the best trial,",
           "N processes of a peer with B training nodes per batch each. bench.json has all trials, updates and ratios.")
AXES: dict[str, Callable[[Point], float]] = {
    "seconds of training": lambda point: point.seconds, "epochs": lambda point: point.epoch,
    "MB sent by all ranks": lambda point: point.sent_bytes / 1e6}


@dataclass(frozen=True)
class RaceResult(BenchmarkResult):
    """A BenchmarkResult with the rows of a race as its measurements."""

    measurements: list[Any] = field(default_factory=list)      # of ScoreRow

    def tables(self) -> list[Table | str]:
        grouped = _grouped(self.measurements)
        return [part for group, rows in grouped for part in (_title_of(group, rows), _table_of(rows))] + [*CAPTION]

    def figure(self) -> Figure:
        return draw_curves(self.measurements)


def _grouped(rows: list[ScoreRow]) -> list[tuple[str, list[ScoreRow]]]:
    return [(group, list(members)) for group, members in groupby(rows, key=lambda row: row.group)]


def _title_of(group: str, rows: list[ScoreRow]) -> str:
    asked = ", ".join(f"{target} = {100 * target.score:.2f}" for target in rows[0].targets)
    seeds = len(rows[0].chosen.by_seed)
    return f"{group}: validation score to reach, {asked}" + (f"; medians of {seeds} seeds" if seeds > 1 else "")


def _table_of(rows: list[ScoreRow]) -> Table:
    columns: dict[str, Callable[[ScoreRow], str]] = {
        f"s to {target}": partial(_reached, target=target) for target in rows[0].targets}
    columns |= {"s/epoch": lambda row: number_text(row.median()),
                "val, test %": lambda row: ", ".join(f"{100 * score:.2f}" for score in row.best_scores())}
    if rows[0].epoch_bytes() > 0:
        columns["MB/epoch"] = lambda row: number_text(row.epoch_bytes() / 1e6)
    columns["peak GB"] = lambda row: number_text(row.peak_bytes() / 1e9)
    table = Table(box=box.MARKDOWN)
    table.add_column("contestant", no_wrap=True)
    table.add_column("lr, NxB", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.case, _chosen(row.chosen.settings), *(cell(row) for cell in columns.values()))
    return table


def _chosen(settings: Settings) -> str:
    batch = f", {settings.processes}x{settings.own_batch}" if settings.batch else ""
    return f"{settings.lr:g}{batch}"


def _reached(row: ScoreRow, target: Target) -> str:
    seconds = row.chosen.seconds_to(target.score)
    return f"{number_text(seconds)} ({row.chosen.epochs_to(target.score):g})" if math.isfinite(seconds) else NOT_REACHED


def draw_curves(rows: list[ScoreRow]) -> Figure:
    """Draw validation score over seconds, epochs and bytes, with the targets: one row of panels per graph and model.

    Each seed of the shown trial is a line. Contestants that send nothing have no line over bytes; if all are such, that
    panel is left out.
    """
    from matplotlib.figure import Figure

    groups = _grouped(rows)
    figure = Figure(figsize=(15, 0.8 + 4.6 * len(groups)), layout="constrained")
    shown = {name: value for name, value in AXES.items() if any(map(value, _last_points(rows)))}
    panels = figure.subplots(len(groups), len(shown), squeeze=False, sharey="row")
    for (group, members), line in zip(groups, panels, strict=True):
        for axes, (name, value) in zip(line, shown.items(), strict=True):
            _draw_panel(axes, members, value)
            axes.set(xlabel=name)
        line[0].set(ylabel=f"validation score (%)\n{group}")
        line[0].legend(frameon=False, fontsize="small")
    return figure


def _last_points(rows: list[ScoreRow]) -> list[Point]:
    return [training.points[-1] for row in rows for training in row.chosen.trainings]


def _draw_panel(axes, rows: list[ScoreRow], value: Callable[[Point], float]) -> None:
    for number, row in enumerate(rows):
        for seed, training in enumerate(row.chosen.trainings):
            places = [value(point) for point in training.points]
            if places[-1] > 0:
                axes.plot(places, [100 * point.val_score for point in training.points], color=f"C{number}",
                          label=row.case if seed == 0 else None, linewidth=1.2)
    for target in rows[0].targets:
        axes.axhline(100 * target.score, color="black", linewidth=0.6, linestyle=":")
    axes.grid(alpha=0.3)
