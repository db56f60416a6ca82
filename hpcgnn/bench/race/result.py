"""RaceResult shows what `hpcgnn bench time-to-score` found: a table with a row a contestant, and the curves."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from hpcgnn.bench.race.curve import Point
from hpcgnn.bench.race.row import ScoreRow, Target
from hpcgnn.bench.result import PICTURE, WIDEST, BenchmarkResult, why_no_picture
from hpcgnn.errors import ConfigError
from hpcgnn.units import number_text, size_text, time_text

NOT_REACHED = "–"
CAPTION = "seconds of training, evaluations not counted; ×: over those of full-graph training; –: not reached"
AXES: dict[str, Callable[[Point], float]] = {
    "seconds of training": lambda point: point.seconds, "epochs": lambda point: point.epoch,
    "MB sent by all ranks": lambda point: point.sent_bytes / 1e6}


@dataclass(frozen=True)
class RaceResult(BenchmarkResult):
    """Holds the rows of a race, ScoreRow each, as a BenchmarkResult holds measurements."""

    def as_text(self) -> str:
        """Return a table for each graph and model, and the remarks."""
        out = io.StringIO()
        console = Console(file=out, width=WIDEST)
        for group, rows in _grouped(self.measurements):
            console.print(_table_of(group, rows))
        for remark in self.remarks():
            console.print(remark, markup=False, highlight=False, soft_wrap=True)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def draw(self, folder: Path) -> str | None:
        """Write bench.png; return None, or why there is none.

        Raises
        ------
        ConfigError      the file can't be written
        """
        missing = why_no_picture(PICTURE)
        if missing is None:
            draw_curves(self.measurements, f"hpcgnn bench {self.kind}, {self.machine['processor']}", folder / PICTURE)
        return missing


def _grouped(rows: list[ScoreRow]) -> list[tuple[str, list[ScoreRow]]]:
    return [(group, list(members)) for group, members in groupby(rows, key=lambda row: row.group)]


def _table_of(group: str, rows: list[ScoreRow]) -> Table:
    targets = rows[0].targets
    asked = ", ".join(f"{target} is {100 * target.score:.2f} %" for target in targets)
    title = f"{group}: validation score to reach, {asked}; seeds: {len(rows[0].chosen.by_seed)}"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", caption=CAPTION, caption_justify="left")
    table.add_column("contestant", no_wrap=True)
    table.add_column("best of its trials", no_wrap=True)
    headings = [heading for target in targets for heading in (f"s to {target}", "×", "epochs (updates)")]
    for heading in (*headings, "an epoch", "best validation %", "its test %", "sent an epoch", "peak memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.case, f"{row.chosen.settings} (of {len(row.trials)})",
                      *(cell for target in targets for cell in _target_cells(row, target)), time_text(row.median()),
                      *(f"{100 * score:.2f}" for score in row.best_scores()), size_text(row.epoch_bytes()),
                      size_text(row.peak_bytes()))
    return table


def _target_cells(row: ScoreRow, target: Target) -> tuple[str, str, str]:
    """Write seconds to a target, their ratio to those of full-graph training, epochs and updates."""
    seconds = row.chosen.seconds_to(target.score)
    if not math.isfinite(seconds):
        return NOT_REACHED, "", ""
    ratio = row.ratio(target)
    return (number_text(seconds), "" if ratio is None else f"{ratio:.2f}",
            f"{row.chosen.epochs_to(target.score):g} ({row.chosen.updates_to(target.score):,g})")


def draw_curves(rows: list[ScoreRow], title: str, path: Path) -> None:
    """Draw validation score over seconds, epochs and bytes: a row of panels a graph and model, a line a seed of the
    trial that is shown, and the targets. Contestants that send nothing have no line over bytes; where all are such,
    that panel is left out.

    Raises
    ------
    ConfigError      the file can't be written
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
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=150)
    except OSError as reason:
        raise ConfigError(f"the picture {path} can't be written: {reason}") from reason


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
