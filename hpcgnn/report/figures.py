"""The figures of a report, drawn by matplotlib from runs. Nothing is read and nothing is written here.

A run has the same color in every figure; the parts of a bar are shades of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import ArrayLike

from hpcgnn.report.comparison import format_bytes, format_number, format_ratio, score_label
from hpcgnn.report.run_folder import Run

# Okabe and Ito's palette without its yellow, which is too pale for lines: told apart with any color vision.
RUN_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
LINE_STYLES = ("-", (0, (6, 1.5)), (0, (1, 1)))
SHADES = (1.0, 0.62, 0.34, 0.16)
LOG_SCALE_FROM = 20   # a linear axis hides what happens at the low end of a wider range than this
WIDTH = 10.0          # inches
NAME_LENGTH = 36      # of a run in a figure; a longer one would leave no room for the data
SECONDARY = {"lw": 1.1, "ls": (0, (1, 1.4))}


@dataclass(frozen=True)
class Theme:
    """Colors of everything that is no run."""

    background: str
    ink: str
    muted: str
    grid: str


LIGHT = Theme(background="#ffffff", ink="#1f2328", muted="#59636e", grid="#e4e7eb")
DARK = Theme(background="#161b22", ink="#e6edf3", muted="#9aa4af", grid="#2b323b")


def draw_figures(runs: list[Run], theme: Theme) -> dict[str, Figure]:
    """All figures of a report by name; those that the runs have no data for are left out."""
    figures = {"loss": draw_loss(runs, theme)}
    if any(np.isfinite(run.curves("test_score")).any() for run in runs):
        figures["score"] = draw_score(runs, theme)
    if any(run.summary["sent_bytes_per_epoch"] for run in runs):
        figures["bytes"] = draw_bytes(runs, theme)
    figures["time"] = draw_time(runs, theme)
    return figures


def draw_loss(runs: list[Run], theme: Theme) -> Figure:
    """Training loss by epoch and by training time, mean and one standard deviation over seeds."""
    figure, axes = _new_curves(theme, "training loss")
    for number, run in enumerate(runs):
        _plot_curve(axes, run, "loss", number)
    _start_at_zero(axes)
    finite = np.concatenate([_mean_over_seeds(run.curves("loss"))[0] for run in runs])
    finite = finite[np.isfinite(finite)]
    if finite.size and finite.min() > 0 and finite.max() / finite.min() > LOG_SCALE_FROM:
        axes[0].set_yscale("log")
    _add_legend(figure, theme, _run_handles(runs))
    return figure


def draw_score(runs: list[Run], theme: Theme) -> Figure:
    """Test score (full line) and validation score (thin, dotted) by epoch and by training time, in percent."""
    figure, axes = _new_curves(theme, f"{score_label(runs)} (%)")
    for number, run in enumerate(runs):
        _plot_curve(axes, run, "test_score", number, scale=100)
        _plot_curve(axes, run, "val_score", number, scale=100, is_secondary=True)
    _start_at_zero(axes)
    splits = [Line2D([], [], color=theme.muted, label=name, **style)
              for name, style in (("test", {"lw": 1.8}), ("validation", SECONDARY))]
    axes[1].legend(handles=splits, loc="best", frameon=False, labelcolor=theme.ink, fontsize=9.5)
    _add_legend(figure, theme, _run_handles(runs))
    return figure


def draw_bytes(runs: list[Run], theme: Theme) -> Figure:
    """Bytes that all ranks send an epoch, payload and parameters apart, with the ratio to the first run."""
    first = runs[0].summary["sent_bytes_per_epoch"]
    totals = [run.summary["sent_bytes_per_epoch"] for run in runs]
    parts = [[run.summary[f"sent_bytes_{part}_per_epoch"] / 1e6 for run in runs] for part in ("payload", "parameters")]
    labels = [format_bytes(total) + (f"   {format_ratio(total, first)}" if number else "")
              for number, total in enumerate(totals)]
    return _draw_bars(runs, theme, parts, ("payload", "parameters"), labels, "sent an epoch, all ranks (MB)")


def draw_time(runs: list[Run], theme: Theme) -> Figure:
    """Median seconds of an epoch, split into what the ranks did."""
    keys = ("compute", "exchange", "quantize")
    parts = np.array([[run.median(f"{key}_seconds") for run in runs] for key in keys])
    totals = np.array([run.median("epoch_seconds") for run in runs])
    # Medians of the parts can add up to more than the median epoch; the bar then shows their proportions.
    measured = parts.sum(axis=0)
    parts *= np.where(measured > totals, totals / np.maximum(measured, 1e-12), 1)
    parts = np.vstack([parts, totals - parts.sum(axis=0)])
    labels = [f"{format_number(total)} s" for total in totals]
    return _draw_bars(runs, theme, parts, (*keys, "other"), labels, "median epoch (s)")


def _label(run: Run) -> str:
    """A run's name as matplotlib shows it: a $ starts no formula, and a leading _ does not hide it from the legend."""
    name = run.name
    if len(name) > NAME_LENGTH:
        name = f"{name[:NAME_LENGTH // 2]}…{name[-NAME_LENGTH // 2 + 1:]}"
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def _run_color(number: int) -> str:
    return RUN_COLORS[number % len(RUN_COLORS)]


def _run_style(number: int):
    return LINE_STYLES[number // len(RUN_COLORS) % len(LINE_STYLES)]


def _new_figure(theme: Theme, height: float, columns: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), facecolor=theme.background, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, columns, sharey=True, squeeze=False)[0])
    for axis in axes:
        axis.set_facecolor(theme.background)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(theme.grid)
        axis.tick_params(colors=theme.muted, labelcolor=theme.muted, length=0, labelsize=9.5)
        axis.set_axisbelow(True)
    return figure, axes


def _new_curves(theme: Theme, label: str) -> tuple[Figure, list[Axes]]:
    """Two panels with a common vertical axis: by epoch and by time."""
    figure, axes = _new_figure(theme, 3.9, 2)
    figure.get_layout_engine().set(wspace=0.05)
    for axis, name in zip(axes, ("epoch", "training time (s)"), strict=True):
        axis.set_xlabel(name, color=theme.ink, fontsize=10)
        axis.grid(color=theme.grid, lw=0.8)
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes[0].set_ylabel(label, color=theme.ink, fontsize=10)
    return figure, axes


def _mean_over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column over the seeds that have it; NaN and 0 where none has."""
    present = np.isfinite(values)
    count = present.sum(axis=0)
    mean = np.where(present, values, 0).sum(axis=0) / np.where(count, count, np.nan)
    squares = np.where(present, (values - mean) ** 2, 0).sum(axis=0)
    return mean, np.sqrt(squares / np.maximum(count - 1, 1))


def _plot_curve(axes: list[Axes], run: Run, key: str, number: int, scale: float = 1.0,
                is_secondary: bool = False) -> None:
    mean, deviation = _mean_over_seeds(scale * run.curves(key))
    shown = np.isfinite(mean)
    elapsed, _ = _mean_over_seeds(run.elapsed_seconds())
    style = SECONDARY if is_secondary else {"lw": 1.8, "ls": _run_style(number)}
    marker = "o" if shown.sum() == 1 else None   # a line through one point is invisible
    filling = "none" if is_secondary else "full"
    for axis, x in zip(axes, (run.epochs, elapsed), strict=True):
        axis.plot(x[shown], mean[shown], color=_run_color(number), marker=marker, ms=5, fillstyle=filling, **style)
        if len(run.seeds) > 1 and not is_secondary:
            axis.fill_between(x[shown], (mean - deviation)[shown], (mean + deviation)[shown],
                              color=_run_color(number), alpha=0.18, lw=0)


def _start_at_zero(axes: list[Axes]) -> None:
    """Only after the last curve: a limit that is set no longer follows the data."""
    for axis in axes:
        axis.set_xlim(left=0)


def _draw_bars(runs: list[Run], theme: Theme, parts: ArrayLike, part_names: tuple[str, ...],
               labels: list[str], axis_label: str) -> Figure:
    """One horizontal bar a run from the first at the top; part p of it in the p-th shade of the run's color."""
    figure, (axis,) = _new_figure(theme, 1.1 + 0.42 * len(runs), 1)
    rows, left = np.arange(len(runs)), np.zeros(len(runs))
    for part, shade in zip(parts, SHADES, strict=False):
        colors = [_shade(_run_color(row), shade, theme) for row in rows]
        axis.barh(rows, part, left=left, height=0.62, color=colors)
        left = left + part
    for row, label in enumerate(labels):
        axis.annotate(label, (left[row], row), xytext=(6, 0), textcoords="offset points", va="center",
                      color=theme.ink, fontsize=9.5)
    axis.set_yticks(rows, [_label(run) for run in runs], color=theme.ink)
    axis.invert_yaxis()
    axis.set_xlim(0, max(left.max() * 1.22, 1e-9))   # room for the labels behind the longest bar
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.grid(axis="x", color=theme.grid, lw=0.8)
    axis.spines["bottom"].set_visible(False)
    axis.set_xlabel(axis_label, color=theme.ink, fontsize=10)
    _add_legend(figure, theme, [Patch(facecolor=_shade(theme.muted, shade, theme), label=name)
                                for name, shade in zip(part_names, SHADES, strict=False)])
    return figure


def _shade(color: str, share: float, theme: Theme) -> np.ndarray:
    """`share` of a color over the background, opaque so that the grid does not show through, (3,) float64."""
    return share * np.array(to_rgb(color)) + (1 - share) * np.array(to_rgb(theme.background))


def _run_handles(runs: list[Run]) -> list[Line2D]:
    return [Line2D([], [], color=_run_color(number), ls=_run_style(number), lw=1.8, label=_label(run))
            for number, run in enumerate(runs)]


def _add_legend(figure: Figure, theme: Theme, handles: list) -> None:
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(len(handles), 5, 125 // (longest + 7)))   # about 125 characters fit into the width
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False,
                  labelcolor=theme.ink, fontsize=9.5, handlelength=1.8, columnspacing=1.6)
