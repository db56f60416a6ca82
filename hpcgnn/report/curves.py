"""Figures whose lines are runs: loss and score by epoch and by training time, the loss's rate of descent by epoch.

A line is the mean over a run's seeds, within a band of one standard deviation.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from hpcgnn.report.canvas import (
    FONT_SIZE,
    LOG_SCALE_FROM,
    SMALL_FONT_SIZE,
    NumberedRuns,
    Theme,
    add_legend,
    new_axes,
    new_figure,
    run_color,
    run_handles,
    run_style,
    set_label,
    show_epochs,
)
from hpcgnn.report.comparison import score_label
from hpcgnn.report.run_folder import Run

SECONDARY = {"lw": 1.1, "ls": (0, (1, 1.4))}


def draw_loss(runs: NumberedRuns, theme: Theme) -> Figure:
    """Training loss by epoch and by training time."""
    figure, axes = _new_panels(theme, "training loss")
    for number, run in runs:
        _plot_by_epoch_and_time(axes, run, "loss", number)
    _start_at_zero(axes)
    _spread_small_values(axes[0], runs, "loss")
    add_legend(figure, theme, run_handles(runs))
    return figure


def draw_score(runs: NumberedRuns, theme: Theme) -> Figure:
    """Test score (full line) and validation score (thin, dotted) by epoch and by training time, in percent."""
    figure, axes = _new_panels(theme, f"{score_label([run for _, run in runs])} (%)")
    for number, run in runs:
        _plot_by_epoch_and_time(axes, run, "test_score", number, scale=100)
        _plot_by_epoch_and_time(axes, run, "val_score", number, scale=100, is_secondary=True)
    _start_at_zero(axes)
    splits = [Line2D([], [], color=theme.muted, label=name, **style)
              for name, style in (("test", {"lw": 1.8}), ("validation", SECONDARY))]
    axes[1].legend(handles=splits, loc="best", frameon=False, labelcolor=theme.ink, fontsize=SMALL_FONT_SIZE)
    add_legend(figure, theme, run_handles(runs))
    return figure


def draw_descent(runs: NumberedRuns, theme: Theme) -> Figure:
    """Training loss above its rate of descent, by which base widths and execution are chosen, by epoch."""
    figure = new_figure(theme, 5.2)
    axes = new_axes(figure, theme, rows=2, sharex=True)
    for axis, key, label in zip(axes, ("loss", "ldr"), ("training loss", "LDR"), strict=True):
        for number, run in runs:
            _plot_mean(axis, run.epochs, run.curves(key), number)
        axis.grid(color=theme.grid, lw=0.8)
        set_label(axis, theme, label)
        _spread_small_values(axis, runs, key)
    show_epochs(axes[-1], theme)
    _start_at_zero(axes)
    add_legend(figure, theme, run_handles(runs))
    return figure


def _new_panels(theme: Theme, label: str) -> tuple[Figure, list[Axes]]:
    """Make two panels with a common vertical axis, one by epoch and one by time."""
    figure = new_figure(theme, 3.9)
    axes = new_axes(figure, theme, columns=2, sharey=True)
    figure.get_layout_engine().set(wspace=0.05)
    for axis in axes:
        axis.grid(color=theme.grid, lw=0.8)
    show_epochs(axes[0], theme)
    set_label(axes[0], theme, label)
    axes[1].set_xlabel("training time (s)", color=theme.ink, fontsize=FONT_SIZE)
    axes[1].xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    return figure, axes


def mean_over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column over the seeds that have it; NaN and 0 where none has."""
    present = np.isfinite(values)
    count = present.sum(axis=0)
    mean = np.where(present, values, 0).sum(axis=0) / np.where(count, count, np.nan)
    squares = np.where(present, (values - mean) ** 2, 0).sum(axis=0)
    return mean, np.sqrt(squares / np.maximum(count - 1, 1))


def _plot_by_epoch_and_time(axes: list[Axes], run: Run, key: str, number: int, scale: float = 1.0,
                            is_secondary: bool = False) -> None:
    elapsed, _ = mean_over_seeds(run.elapsed_seconds())
    for axis, x in zip(axes, (run.epochs, elapsed), strict=True):
        _plot_mean(axis, x, scale * run.curves(key), number, is_secondary)


def _plot_mean(axis: Axes, x: np.ndarray, values: np.ndarray, number: int, is_secondary: bool = False) -> None:
    mean, deviation = mean_over_seeds(values)
    shown = np.isfinite(mean)
    style = SECONDARY if is_secondary else {"lw": 1.8, "ls": run_style(number)}
    marker = "o" if shown.sum() == 1 else None   # a line through one point is invisible
    filling = "none" if is_secondary else "full"
    axis.plot(x[shown], mean[shown], color=run_color(number), marker=marker, ms=5, fillstyle=filling, **style)
    if len(values) > 1 and not is_secondary:
        axis.fill_between(x[shown], (mean - deviation)[shown], (mean + deviation)[shown],
                          color=run_color(number), alpha=0.18, lw=0)


def _start_at_zero(axes: list[Axes]) -> None:
    """Start the axes at 0; call it after the last curve, because a limit that is set no longer follows the data."""
    for axis in axes:
        axis.set_xlim(left=0)


def _spread_small_values(axis: Axes, runs: NumberedRuns, key: str) -> None:
    """A logarithmic axis where the means span a wide range; linear around zero where some are not positive."""
    means = np.concatenate([mean_over_seeds(run.curves(key))[0] for _, run in runs])
    means = means[np.isfinite(means)]
    sizes = np.abs(means[means != 0])
    if not sizes.size or sizes.max() / sizes.min() <= LOG_SCALE_FROM:
        return
    if means.min() > 0:
        axis.set_yscale("log")
        # Few decades have few powers of ten, too few to read values by.
        steps = (1, 2, 5) if sizes.max() / sizes.min() < 1000 else (1,)
        axis.yaxis.set_major_locator(LogLocator(subs=steps, numticks=12))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_locator(NullLocator())
    elif means.min() < 0:
        axis.set_yscale("symlog", linthresh=np.percentile(sizes, 25), linscale=0.5)
