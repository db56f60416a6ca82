"""The figure of bytes by pair of ranks: a heat map a run, of the last epoch in which they were recorded.

Each map has its own color scale: a packed run beside an unpacked one would otherwise be a single color.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hpcgnn.report.canvas import (
    FONT_SIZE,
    SMALL_FONT_SIZE,
    NumberedRuns,
    Theme,
    add_run_title,
    new_axes,
    new_figure,
    set_label,
)
from hpcgnn.report.comparison import format_number
from hpcgnn.report.run_folder import Run
from hpcgnn.report.summary import values_of

COLUMNS = 3
NAME_LENGTH = 24     # of a run above its map, which is narrow
WRITTEN_UP_TO = 5    # ranks; cells of more are too small for their numbers
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def last_pair_bytes(run: Run) -> np.ndarray | None:
    """Bytes from rank (row) to rank (column) in the last epoch that recorded them, (P, P) float64; None if nothing was
    sent or recorded."""
    tables = values_of(run.records, "sent_bytes_by_pair")
    if not tables or not np.any(tables[-1]):
        return None
    return np.array(tables[-1], dtype=float)


def draw_pairs(runs: NumberedRuns, theme: Theme) -> Figure:
    """Heat maps side by side, three a line; the diagonal, where nothing is sent, stays empty."""
    lines = math.ceil(len(runs) / COLUMNS)
    figure = new_figure(theme, 3.1 * lines)
    axes = new_axes(figure, theme, rows=lines, columns=COLUMNS)
    for axis, (_, run) in zip(axes, runs, strict=False):
        _draw_map(figure, axis, last_pair_bytes(run), theme)
        add_run_title(axis, run, theme, NAME_LENGTH)
    for axis in axes[len(runs):]:
        axis.set_visible(False)    # it keeps its place, so that maps of the last line are as large as the others
    return figure


def _draw_map(figure: Figure, axis: Axes, sent_bytes: np.ndarray, theme: Theme) -> None:
    size, unit = next(((size, unit) for size, unit in UNITS if sent_bytes.max() >= size), (1, "B"))
    cells = np.where(np.eye(len(sent_bytes), dtype=bool), np.nan, sent_bytes / size)
    image = axis.imshow(cells, cmap="cividis", vmin=0)
    bar = figure.colorbar(image, ax=axis, fraction=0.046, pad=0.04)   # as high as a square map
    bar.set_label(unit, color=theme.ink, fontsize=FONT_SIZE)
    bar.ax.tick_params(colors=theme.muted, labelcolor=theme.muted, length=0, labelsize=SMALL_FONT_SIZE)
    bar.outline.set_visible(False)
    axis.set_anchor("W")
    axis.spines[:].set_visible(False)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("to rank", color=theme.ink, fontsize=FONT_SIZE)
    set_label(axis, theme, "from rank")
    if len(cells) <= WRITTEN_UP_TO:
        _write_cells(axis, cells)


def _write_cells(axis: Axes, cells: np.ndarray) -> None:
    darkest_light = 0.55 * np.nanmax(cells)    # cividis is light above the middle of its range
    for row, column in np.argwhere(np.isfinite(cells)):
        value = cells[row, column]
        axis.text(column, row, format_number(value), ha="center", va="center", fontsize=8.5,
                  color="black" if value > darkest_light else "white")
