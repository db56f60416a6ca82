"""This module holds what all figures of a report share: colors, themes, empty figures, names of runs, legends.

Nothing here knows a field of a run's metrics; what is drawn lives in the neighboring modules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from hpcgnn.report.run_folder import Run

# Okabe and Ito's palette without its yellow, which is too pale for lines: told apart with any color vision.
RUN_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
LINE_STYLES = ("-", (0, (6, 1.5)), (0, (1, 1)))
WIDTH = 10.0          # inches
NAME_LENGTH = 36      # of a run in a figure; a longer one would leave no room for the data
FONT_SIZE, SMALL_FONT_SIZE = 10, 9.5
LOG_SCALE_FROM = 20   # a linear axis hides what happens at the low end of a wider range than this

NumberedRuns = list[tuple[int, Run]]


@dataclass(frozen=True)
class Theme:
    """Colors of everything that is no run."""

    background: str
    ink: str
    muted: str
    grid: str


LIGHT = Theme(background="#ffffff", ink="#1f2328", muted="#59636e", grid="#e4e7eb")
DARK = Theme(background="#161b22", ink="#e6edf3", muted="#9aa4af", grid="#2b323b")


def new_figure(theme: Theme, height: float) -> Figure:
    """An empty figure of the report's width; `height` in inches."""
    figure = Figure(figsize=(WIDTH, height), facecolor=theme.background, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_axes(figure: Figure, theme: Theme, rows: int = 1, columns: int = 1, **layout) -> list[Axes]:
    """Plain panels, row by row; `layout` as matplotlib's `subplots` takes it."""
    axes = list(figure.subplots(rows, columns, squeeze=False, **layout).flat)
    for axis in axes:
        axis.set_facecolor(theme.background)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(theme.grid)
        axis.tick_params(which="both", colors=theme.muted, labelcolor=theme.muted, length=0, labelsize=SMALL_FONT_SIZE)
        axis.set_axisbelow(True)
    return axes


def add_run_title(axis: Axes, run: Run, theme: Theme, length: int = NAME_LENGTH) -> None:
    """The run's name, of at most `length` characters, above a panel of its own."""
    axis.set_title(run_label(run, length), loc="left", color=theme.ink, fontsize=SMALL_FONT_SIZE, fontweight="bold")


def show_epochs(axis: Axes, theme: Theme) -> None:
    """Label the horizontal axis with whole epochs."""
    axis.set_xlabel("epoch", color=theme.ink, fontsize=FONT_SIZE)
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def set_label(axis: Axes, theme: Theme, label: str) -> None:
    """Label the vertical axis."""
    axis.set_ylabel(label, color=theme.ink, fontsize=FONT_SIZE)


def run_label(run: Run, length: int = NAME_LENGTH) -> str:
    """A run's name as matplotlib shows it: a $ starts no formula, and a leading _ does not hide it from the legend."""
    name = run.name
    if len(name) > length:
        name = f"{name[:length // 2]}…{name[-length // 2 + 1:]}"
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def run_color(number: int) -> str:
    return RUN_COLORS[number % len(RUN_COLORS)]


def run_style(number: int) -> str | tuple:
    return LINE_STYLES[number // len(RUN_COLORS) % len(LINE_STYLES)]


def run_handles(runs: NumberedRuns) -> list[Line2D]:
    """Legend entries of runs that are drawn as lines."""
    return [Line2D([], [], color=run_color(number), ls=run_style(number), lw=1.8, label=run_label(run))
            for number, run in runs]


def shade_of(color: str, share: float, theme: Theme) -> np.ndarray:
    """`share` of a color over the background, opaque so that the grid does not show through, (3,) float64."""
    return share * np.array(to_rgb(color)) + (1 - share) * np.array(to_rgb(theme.background))


def add_legend(figure: Figure, theme: Theme, handles: list) -> None:
    """A legend above all panels, in as many columns as its names leave room for."""
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(len(handles), 7, 125 // (longest + 7)))   # about 125 characters fit into the width
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False,
                  labelcolor=theme.ink, fontsize=SMALL_FONT_SIZE, handlelength=1.8, columnspacing=1.6)
