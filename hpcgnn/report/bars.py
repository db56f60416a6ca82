"""Figures with one horizontal bar a run: bytes and seconds of an epoch, and how much of the travelling is waited for.

The parts of a bar are shades of its run's color.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import ArrayLike

from hpcgnn.report.canvas import (
    FONT_SIZE,
    SMALL_FONT_SIZE,
    NumberedRuns,
    Theme,
    add_legend,
    new_axes,
    new_figure,
    run_color,
    run_label,
    shade_of,
)
from hpcgnn.report.comparison import format_bytes, format_number, format_ratio

SHADES = (1.0, 0.62, 0.34, 0.16)
BAR_HEIGHT, INNER_HEIGHT = 0.62, 0.26


def draw_bytes(runs: NumberedRuns, theme: Theme) -> Figure:
    """Bytes that all ranks send an epoch, payload and parameters apart, with the ratio to the first run."""
    totals = [run.summary["sent_bytes_per_epoch"] for _, run in runs]
    names = ("payload", "parameters")
    parts = [[run.summary[f"sent_bytes_{part}_per_epoch"] / 1e6 for _, run in runs] for part in names]
    labels = [format_bytes(total) + (f"   {format_ratio(total, totals[0])}" if row else "")
              for row, total in enumerate(totals)]
    figure, axis = _new_bars(runs, theme, "sent an epoch, all ranks (MB)")
    _stack(axis, runs, theme, parts, labels)
    add_legend(figure, theme, _part_handles(theme, names))
    return figure


def draw_time(runs: NumberedRuns, theme: Theme) -> Figure:
    """Median seconds of an epoch, split into what the ranks did."""
    keys = ("compute", "exchange", "quantize")
    parts = np.array([[run.median(f"{key}_seconds") for _, run in runs] for key in keys])
    totals = np.array([run.median("epoch_seconds") for _, run in runs])
    # Medians of the parts can add up to more than the median epoch; the bar then shows their proportions.
    measured = parts.sum(axis=0)
    parts *= np.where(measured > totals, totals / np.maximum(measured, 1e-12), 1)
    parts = np.vstack([parts, totals - parts.sum(axis=0)])
    figure, axis = _new_bars(runs, theme, "median epoch (s)")
    _stack(axis, runs, theme, parts, [f"{format_number(total)} s" for total in totals])
    add_legend(figure, theme, _part_handles(theme, (*keys, "other")))
    return figure


def draw_waiting(runs: NumberedRuns, theme: Theme) -> Figure:
    """Mean seconds that an epoch's messages travel, and before them the seconds that a rank is blocked."""
    travel, blocked = ([run.mean(f"{key}_seconds") for _, run in runs] for key in ("travel", "blocked"))
    figure, axis = _new_bars(runs, theme, "mean epoch, summed over its exchanges (s)")
    rows = np.arange(len(runs))
    for seconds, height, shade in ((travel, BAR_HEIGHT, SHADES[2]), (blocked, INNER_HEIGHT, SHADES[0])):
        axis.barh(rows, seconds, height=height, color=[shade_of(run_color(number), shade, theme) for number, _ in runs])
    labels = [f"{format_number(wait)} s blocked, {format_number(way)} s travelling"
              for wait, way in zip(blocked, travel, strict=True)]
    _label_ends(axis, theme, np.maximum(travel, blocked), labels, room=1.6)
    add_legend(figure, theme, [Patch(facecolor=shade_of(theme.muted, shade, theme), label=name) for name, shade in
                               (("messages travel", SHADES[2]), ("a rank is blocked", SHADES[0]))])
    return figure


def _new_bars(runs: NumberedRuns, theme: Theme, axis_label: str) -> tuple[Figure, Axes]:
    """A row a run from the first at the top."""
    figure = new_figure(theme, 1.1 + 0.42 * len(runs))
    (axis,) = new_axes(figure, theme)
    axis.set_yticks(np.arange(len(runs)), [run_label(run) for _, run in runs], color=theme.ink)
    axis.set_ylim(len(runs) - 0.5, -0.5)
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.grid(axis="x", color=theme.grid, lw=0.8)
    axis.spines["bottom"].set_visible(False)
    axis.set_xlabel(axis_label, color=theme.ink, fontsize=FONT_SIZE)
    return figure, axis


def _stack(axis: Axes, runs: NumberedRuns, theme: Theme, parts: ArrayLike, labels: list[str]) -> None:
    """Part p of every bar in the p-th shade, behind the parts before it."""
    rows, left = np.arange(len(runs)), np.zeros(len(runs))
    for part, shade in zip(parts, SHADES, strict=False):
        colors = [shade_of(run_color(number), shade, theme) for number, _ in runs]
        axis.barh(rows, part, left=left, height=BAR_HEIGHT, color=colors)
        left = left + part
    _label_ends(axis, theme, left, labels, room=1.22)


def _label_ends(axis: Axes, theme: Theme, ends: np.ndarray, labels: list[str], room: float) -> None:
    """A text behind every bar; the axis is `room` times as long as the longest bar."""
    box = {"facecolor": theme.background, "lw": 0, "pad": 1}    # the grid does not strike the text through
    for row, label in enumerate(labels):
        axis.annotate(label, (ends[row], row), xytext=(6, 0), textcoords="offset points", va="center",
                      color=theme.ink, fontsize=SMALL_FONT_SIZE, bbox=box)
    axis.set_xlim(0, max(ends.max() * room, 1e-9))


def _part_handles(theme: Theme, names: tuple[str, ...]) -> list[Patch]:
    return [Patch(facecolor=shade_of(theme.muted, shade, theme), label=name)
            for name, shade in zip(names, SHADES, strict=False)]
