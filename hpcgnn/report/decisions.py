"""Figures of what adaptive runs decided epoch by epoch: the widths of message rows, synchronous or not, and how stale.

A run has a panel of its own, which shows its first seed: decisions have no mean.
"""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from hpcgnn.report.canvas import (
    NumberedRuns,
    Theme,
    add_legend,
    add_run_title,
    new_axes,
    new_figure,
    set_label,
    shade_of,
    show_epochs,
)
from hpcgnn.report.run_folder import Run
from hpcgnn.widths import BIT_WIDTHS

# Viridis rises in lightness throughout, so that the order of widths is seen with any color vision.
WIDTH_COLORS = dict(zip(BIT_WIDTHS, colormaps["viridis"]([0.08, 0.3, 0.55, 0.78, 0.9, 1.0]), strict=True))
MODE_COLORS = {"sync": ("#E69F00", 0.62), "async": ("#56B4E9", 0.26)}
WIDE_STEPS_UP_TO = 80    # epochs; a wide line through more would hide what it crosses
MODE_NAMES = {"sync": "synchronous epoch", "async": "asynchronous epoch"}


def has_varying_widths(run: Run) -> bool:
    """Whether the run sent rows of several widths, or moved a base width: one width alone is no picture."""
    used = {width for record in run.first_seed for width, rows in (record.get("width_histogram") or {}).items() if rows}
    has_base = any(record.get("base_bits") is not None for record in run.first_seed)
    return len(used) > 1 or (bool(used) and has_base)


def has_stale_epochs(run: Run) -> bool:
    """Whether any epoch ran asynchronously or read a halo row of an earlier one."""
    return any(record.get("mode") == "async" or record.get("staleness") for record in run.first_seed)


def draw_widths(runs: NumberedRuns, theme: Theme) -> Figure:
    """Shares of message rows by width, stacked from the narrowest, above the base width of runs that have one."""
    has_base = [any(epoch_values(run, "base_bits")) for _, run in runs]
    heights = [height for is_based in has_base for height in ((1.5, 0.6) if is_based else (1.5,))]
    figure, axes = _new_panels(theme, heights)
    shown: set[int] = set()
    panels = iter(axes)
    for (_, run), is_based in zip(runs, has_base, strict=True):
        shares = width_shares(run)
        shown |= set(shares)
        _stack_shares(next(panels), run, shares, theme)
        if is_based:
            _add_base_width(next(panels), run, theme)
    add_legend(figure, theme, [Patch(facecolor=_width_color(width), label=f"{width} bit" + "s" * (width > 1))
                               for width in sorted(shown)])
    return figure


def draw_execution(runs: NumberedRuns, theme: Theme) -> Figure:
    """Synchronous and asynchronous epochs as bands, the age of the oldest halo row that was read as a step line."""
    figure, axes = _new_panels(theme, [1.3] * len(runs))
    for axis, (_, run) in zip(axes, runs, strict=True):
        add_run_title(axis, run, theme)
        modes = epoch_values(run, "mode")
        for mode in MODE_COLORS:
            _add_bands(axis, run, [found == mode for found in modes], shade_of(*MODE_COLORS[mode], theme))
        _add_staleness(axis, run, theme)
    handles = [Patch(facecolor=shade_of(*color, theme), label=MODE_NAMES[mode]) for mode, color in MODE_COLORS.items()]
    if any(axis.lines for axis in axes):
        handles.append(Line2D([], [], color=theme.ink, lw=1.8, label="age of the oldest halo row read"))
    add_legend(figure, theme, handles)
    return figure


def _new_panels(theme: Theme, heights: list[float]) -> tuple[Figure, list[Axes]]:
    """Panels below each other, `heights` in inches, over a common axis of epochs."""
    figure = new_figure(theme, 0.9 + sum(heights) + 0.2 * len(heights))
    axes = new_axes(figure, theme, rows=len(heights), sharex=True, height_ratios=heights)
    for axis in axes:
        axis.margins(x=0)
    show_epochs(axes[-1], theme)
    figure.align_ylabels(axes)
    return figure, axes


def epoch_range(run: Run) -> np.ndarray:
    """All epochs from the first seed's first to its last, (num_epochs,) int64."""
    epochs = [record["epoch"] for record in run.first_seed]
    return np.arange(min(epochs), max(epochs) + 1)


def epoch_values(run: Run, key: str) -> list:
    """The first seed's values of one key over `epoch_range`, None where it was not recorded."""
    by_epoch = {record["epoch"]: record.get(key) for record in run.first_seed}
    return [by_epoch.get(epoch) for epoch in epoch_range(run).tolist()]


def width_shares(run: Run) -> dict[int, np.ndarray]:
    """Percentage of message rows by width, ascending, each (num_epochs,) float64, NaN where nothing was sent."""
    histograms = [{int(width): rows for width, rows in (histogram or {}).items()}
                  for histogram in epoch_values(run, "width_histogram")]
    total = np.array([sum(histogram.values()) or np.nan for histogram in histograms])
    widths = sorted({width for histogram in histograms for width, rows in histogram.items() if rows})
    return {width: 100 * np.array([histogram.get(width, 0) for histogram in histograms]) / total for width in widths}


def _width_color(width: int) -> np.ndarray:
    """Color of a width; one outside the usual set takes that of the next narrower one."""
    return WIDTH_COLORS[max(known for known in BIT_WIDTHS if known <= width)]


def _edges(run: Run) -> np.ndarray:
    """Return the edges between epochs, each a step as wide as 1 around its number."""
    epochs = epoch_range(run)
    return np.append(epochs - 0.5, epochs[-1] + 0.5)


def _stack_shares(axis: Axes, run: Run, shares: dict[int, np.ndarray], theme: Theme) -> None:
    below = np.zeros(len(epoch_range(run)))
    for width, share in shares.items():
        axis.stairs(below + share, _edges(run), baseline=below, fill=True, color=_width_color(width), lw=0)
        below = below + share
    add_run_title(axis, run, theme)
    axis.set_ylim(0, 100)
    set_label(axis, theme, "message\nrows (%)")


def _add_step_line(axis: Axes, run: Run, key: str, theme: Theme) -> np.ndarray:
    """Draw the values of one key, one step an epoch, and return them, NaN where the run did not record them."""
    values = np.array([np.nan if value is None else value for value in epoch_values(run, key)], dtype=float)
    if not np.isnan(values).all():
        width = 1.8 if len(values) <= WIDE_STEPS_UP_TO else 1.0
        # An epoch's value at both of its edges: unlike with mid-steps, a single epoch is visible too.
        axis.plot(np.repeat(_edges(run), 2)[1:-1], np.repeat(values, 2), color=theme.ink, lw=width)
    return values


def _add_base_width(axis: Axes, run: Run, theme: Theme) -> None:
    values = _add_step_line(axis, run, "base_bits", theme)
    axis.set_yscale("log", base=2)
    largest = max(8, np.nanmax(values))
    axis.set_ylim(0.7, 1.4 * largest)
    ticks = [width for width in BIT_WIDTHS if width <= largest]
    axis.set_yticks(ticks, [str(width) for width in ticks])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.grid(axis="y", color=theme.grid, lw=0.8)
    set_label(axis, theme, "base width\n(bits)")


def _add_bands(axis: Axes, run: Run, is_member: list[bool], color: np.ndarray) -> None:
    """Full-height bands over the blocks of successive epochs that are members."""
    steps = np.flatnonzero(np.diff([False, *is_member, False])).reshape(-1, 2)
    if len(steps):
        starts, ends = _edges(run)[steps.T]
        axis.broken_barh(list(zip(starts, ends - starts, strict=True)), (0, 1), color=color, lw=0,
                         transform=axis.get_xaxis_transform())


def _add_staleness(axis: Axes, run: Run, theme: Theme) -> None:
    values = _add_step_line(axis, run, "staleness", theme)
    if np.isnan(values).all():
        axis.set_yticks([])
        return
    oldest = max(1, np.nanmax(values))
    axis.set_ylim(-0.15 * oldest, 1.2 * oldest)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    set_label(axis, theme, "staleness\n(epochs)")
