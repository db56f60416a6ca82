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
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import MaxNLocator, NullLocator

from hpcgnn.report.canvas import SMALL_FONT_SIZE, NumberedRuns, Theme, add_legend, new_run_panels, set_label, shade_of
from hpcgnn.report.run_folder import Run

WIDTHS = (1, 2, 4, 8, 16, 32)
# Cividis rises in lightness alone, so that the order of widths is seen with any color vision.
WIDTH_COLORS = dict(zip(WIDTHS, colormaps["cividis"](np.linspace(0.05, 1, len(WIDTHS))), strict=True))
MODE_COLORS = {"sync": ("#E69F00", 0.62), "async": ("#56B4E9", 0.26)}
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
    """Shares of message rows by width, stacked from the narrowest, with the base width as a step line."""
    figure, axes = new_run_panels(theme, runs, 1.9)
    shares = [width_shares(run) for _, run in runs]
    shown = sorted(set().union(*shares))
    has_line = [_add_base_width(axis, run, theme) for axis, (_, run) in zip(axes, runs, strict=True)]
    for axis, (_, run), by_width in zip(axes, runs, shares, strict=True):
        below = np.zeros(len(epoch_range(run)))
        for width, share in by_width.items():
            axis.stairs(below + share, _edges(run), baseline=below, fill=True, color=_width_color(width), lw=0)
            below = below + share
        axis.set_ylim(0, 100)
        set_label(axis, theme, "message rows (%)")
    handles = [Patch(facecolor=_width_color(width), label=f"{width} bit" + "s" * (width > 1)) for width in shown]
    if any(has_line):
        handles.append(Line2D([], [], color=theme.ink, lw=1.8, label="base width"))
    add_legend(figure, theme, handles)
    return figure


def draw_execution(runs: NumberedRuns, theme: Theme) -> Figure:
    """Synchronous and asynchronous epochs as bands, the age of the oldest halo row that was read as a step line."""
    figure, axes = new_run_panels(theme, runs, 1.3)
    for axis, (_, run) in zip(axes, runs, strict=True):
        modes = epoch_values(run, "mode")
        for mode in MODE_COLORS:
            _add_bands(axis, run, [found == mode for found in modes], shade_of(*MODE_COLORS[mode], theme))
        _add_staleness(axis, run, theme)
    handles = [Patch(facecolor=shade_of(*color, theme), label=MODE_NAMES[mode]) for mode, color in MODE_COLORS.items()]
    if any(axis.lines for axis in axes):
        handles.append(Line2D([], [], color=theme.ink, lw=1.8, label="age of the oldest halo row read"))
    add_legend(figure, theme, handles)
    return figure


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
    return WIDTH_COLORS[max(known for known in WIDTHS if known <= width)]


def _edges(run: Run) -> np.ndarray:
    """Where epochs begin and end: an epoch is a step as wide as 1 around its number."""
    epochs = epoch_range(run)
    return np.append(epochs - 0.5, epochs[-1] + 0.5)


def _add_step_line(axis: Axes, run: Run, key: str, theme: Theme) -> bool:
    """The values of one key, one step an epoch, outlined so that they stand out from any area."""
    values = np.array([np.nan if value is None else value for value in epoch_values(run, key)], dtype=float)
    if np.isnan(values).all():
        return False
    # An epoch's value at both of its edges: unlike mid-steps, a single epoch is visible too.
    outline = [Stroke(linewidth=3.4, foreground=theme.background), Normal()]
    axis.plot(np.repeat(_edges(run), 2)[1:-1], np.repeat(values, 2), color=theme.ink, lw=1.8, path_effects=outline)
    return True


def _add_base_width(axis: Axes, run: Run, theme: Theme) -> bool:
    """The base width along an axis of its own at the right, if the run has one."""
    if not any(epoch_values(run, "base_bits")):
        return False
    right = axis.twinx()
    _add_step_line(right, run, "base_bits", theme)
    right.set_yscale("log", base=2)
    right.set_ylim(0.8, 10 if max(filter(None, epoch_values(run, "base_bits"))) <= 8 else 40)
    ticks = [width for width in WIDTHS if width <= right.get_ylim()[1]]
    right.set_yticks(ticks, [str(width) for width in ticks])
    right.yaxis.set_minor_locator(NullLocator())
    right.tick_params(colors=theme.muted, labelcolor=theme.muted, length=0, labelsize=SMALL_FONT_SIZE)
    right.spines[:].set_visible(False)
    set_label(right, theme, "base width (bits)")
    return True


def _add_bands(axis: Axes, run: Run, is_member: list[bool], color: np.ndarray) -> None:
    """Full-height bands over the blocks of successive epochs that are members."""
    steps = np.flatnonzero(np.diff([False, *is_member, False])).reshape(-1, 2)
    if len(steps):
        starts, ends = _edges(run)[steps.T]
        axis.broken_barh(list(zip(starts, ends - starts, strict=True)), (0, 1), color=color, lw=0,
                         transform=axis.get_xaxis_transform())


def _add_staleness(axis: Axes, run: Run, theme: Theme) -> None:
    if not _add_step_line(axis, run, "staleness", theme):
        axis.set_yticks([])
        return
    oldest = max(value for value in epoch_values(run, "staleness") if value is not None)
    axis.set_ylim(-0.15 * max(oldest, 1), 1.2 * max(oldest, 1))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    set_label(axis, theme, "staleness\n(epochs)")
