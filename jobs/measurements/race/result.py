"""The output of the race: a table with one row per contestant (`ScoreRow`), and the curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from measurements.race.curve import Point, Trial
from rich import box
from rich.table import Table

from hpcgnn.bench.result import BenchmarkResult
from hpcgnn.run.output import number_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Target:
    """A validation score to reach, and its share of full-graph training's best score; None if it was asked for."""

    score: float
    share: float | None = None

    def __str__(self) -> str:
        return f"{100 * (self.score if self.share is None else self.share):g} %"


@dataclass(frozen=True)
class ScoreRow:
    """One contestant."""

    # group, case: graph and model, and the contestant's name
    group: str
    case: str
    trials: list[Trial]
    targets: list[Target]      # ascending
    firsts: list[Trial]        # for each target the trial that reached it first on its first seed, trained on all seeds
    is_peer: bool = False
    remarks: list[str] = field(default_factory=list)

    @property
    def chosen(self) -> Trial:
        """The trial whose settings, epochs and scores are shown: the first at the highest target that any reached."""
        for trial, target in zip(reversed(self.firsts), reversed(self.targets), strict=True):
            if math.isfinite(trial.seconds_to(target.score)):
                return trial
        return self.firsts[-1]

    def median(self) -> float:
        """Median seconds per epoch."""
        return self.chosen.median(lambda training: training.epoch_seconds)

    def seconds(self) -> list[float]:
        """Median seconds to each target by its best trial; infinite if it is not reached."""
        return [trial.seconds_to(target.score) for trial, target in zip(self.firsts, self.targets, strict=True)]

    def as_record(self) -> dict[str, Any]:
        # bench.json has null for a target that is never reached.
        chosen, best = self.chosen, self.best_scores()
        return {"group": self.group, "case": self.case, "unit": "s", "chosen": str(chosen.settings),
                "epoch_seconds": self.median(), "epoch_bytes": self.epoch_bytes(), "peak_bytes": self.peak_bytes(),
                "val_score": best[0], "test_score": best[1],
                "targets": [{"share": target.share, "score": target.score, "first": str(trial.settings),
                             "seconds": finite(trial.seconds_to(target.score)),
                             "epochs": finite(trial.epochs_to(target.score)),
                             "updates": finite(trial.updates_to(target.score))}
                            for trial, target in zip(self.firsts, self.targets, strict=True)],
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
CAPTION = ("s to: seconds of training (epochs), evaluations not counted, by the trial that was first there; –: not",
           "reached. s/epoch, scores, bytes and peak are of the trial that was first at the highest score. sooner: the",
           "first peer's seconds divided by ours. dropout: of hidden rows, then of input rows. batch: number of",
           "processes, and training nodes in each. bench.json has all trials.")
AXES: dict[str, Callable[[Point], float]] = {
    "seconds of training": lambda point: point.seconds, "epochs": lambda point: point.epoch,
    "MB sent by all ranks": lambda point: point.sent_bytes / 1e6}


@dataclass(frozen=True)
class RaceResult(BenchmarkResult):
    """A BenchmarkResult with the rows of a race as its measurements."""

    measurements: list[Any] = field(default_factory=list)      # of ScoreRow

    def tables(self) -> list[Table | str]:
        grouped = _grouped(self.measurements)
        parts: list[Table | str] = []
        for group, rows in grouped:
            parts += [_title_of(group, rows), _table_of(rows), *map(_settings_of, rows)]
        return [*parts, *CAPTION]

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
        f"s to {target}": partial(_reached, number=number) for number, target in enumerate(rows[0].targets)}
    columns |= {"s/epoch": lambda row: number_text(row.median()),
                "val, test %": lambda row: ", ".join(f"{100 * score:.2f}" for score in row.best_scores())}
    if rows[0].epoch_bytes() > 0:
        columns["MB/epoch"] = lambda row: number_text(row.epoch_bytes() / 1e6)
    columns["peak GB"] = lambda row: number_text(row.peak_bytes() / 1e9)
    table = Table(box=box.MARKDOWN)
    table.add_column("contestant", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.case, *(cell(row) for cell in columns.values()))
    peers = [row.seconds() for row in rows if row.is_peer]
    if peers:
        first = [min(seconds) for seconds in zip(*peers, strict=True)]
        for row in rows:
            if not row.is_peer:
                ratios = map(_sooner, first, row.seconds())
                table.add_row(f"{row.case}: sooner", *ratios, *[""] * (len(columns) - len(first)))
    return table


def _settings_of(row: ScoreRow) -> str:
    # The settings of the trials that were first, each once, with the targets that they reached first.
    by_settings: dict[str, list[str]] = {}
    for trial, target in zip(row.firsts, row.targets, strict=True):
        by_settings.setdefault(str(trial.settings), []).append(str(target))
    told = "; ".join(f"{settings} ({', '.join(targets)})" for settings, targets in by_settings.items())
    number = len(row.trials)
    return f"{row.case}, {number} trial{'s' * (number != 1)}: {told}"


def _reached(row: ScoreRow, number: int) -> str:
    trial, score = row.firsts[number], row.targets[number].score
    seconds = trial.seconds_to(score)
    return f"{number_text(seconds)} ({trial.epochs_to(score):g})" if math.isfinite(seconds) else NOT_REACHED


def _sooner(peer: float, ours: float) -> str:
    return number_text(peer / ours) if math.isfinite(peer) and math.isfinite(ours) and ours > 0 else NOT_REACHED


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
