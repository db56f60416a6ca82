"""Figures of benchmark folders: size of rows by format (MEGA's Fig. 4), and DRAM traffic (its Fig. 6 and 20b).

What a folder says is read in `hpcgnn.report.bench_folder`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

from hpcgnn.report.bars import SHADES
from hpcgnn.report.bench_folder import TRAFFIC_PARTS, BenchFolder, SchemeTraffic, StoredRows
from hpcgnn.report.canvas import (
    FONT_SIZE,
    RUN_COLORS,
    SMALL_FONT_SIZE,
    Theme,
    add_legend,
    new_axes,
    new_figure,
    set_label,
    shade_of,
)
from hpcgnn.report.comparison import format_number

PART_NAMES = dict(zip(TRAFFIC_PARTS, ("same cluster", "other clusters", "copies written", "lists"), strict=True))
REFERENCE = "dense"      # the format that the others are measured against
GROUP_WIDTH = 0.84       # of the bars of one width of codes


@dataclass(frozen=True)
class BoundChart:
    """One figure of the report, as `figures.Chart`, with what it shows bound."""

    name: str
    title: str
    caption: str
    draw: Callable[[Theme], Figure]


def bench_charts(folders: list[BenchFolder]) -> list[BoundChart]:
    """Figures of all folders in order; names are numbered from the second folder on."""
    charts = []
    for number, folder in enumerate(folders):
        suffix = f"-{number + 1}" if number else ""
        if folder.rows:
            charts.append(BoundChart(
                f"formats{suffix}", f"Size by format: {folder.name}",
                "Stored bits of random rows over those of dense rows of one width; the paler part says where values "
                "stand. Adaptive-Package and the ideal store each row at its own width.",
                partial(draw_sizes, folder.rows)))
        if folder.traffic:
            charts.append(BoundChart(
                f"dram{suffix}", f"DRAM traffic: {folder.name}",
                f"{folder.title}. Bytes read for one aggregation, and written for copies.",
                partial(draw_traffic, folder.traffic)))
    return charts


def draw_sizes(rows: list[StoredRows], theme: Theme) -> Figure:
    """A panel a density: bars of each format in a group for each width of the codes."""
    densities = list(dict.fromkeys(row.density for row in rows))
    formats = [name for name in rows[0].stored_bits if name != REFERENCE]
    colors = {name: RUN_COLORS[number % len(RUN_COLORS)] for number, name in enumerate(formats)}
    figure = new_figure(theme, 3.4)
    axes = new_axes(figure, theme, columns=len(densities))
    for axis, density in zip(axes, densities, strict=True):
        _add_sizes(axis, [row for row in rows if row.density == density], colors, theme)
        axis.set_title(f"{100 * density:g} % not zero", loc="left", color=theme.ink, fontsize=SMALL_FONT_SIZE)
        axis.set_xlabel("bits of the codes", color=theme.ink, fontsize=FONT_SIZE)
    set_label(axes[0], theme, "size over dense rows")
    add_legend(figure, theme, [Patch(facecolor=color, label=name) for name, color in colors.items()])
    return figure


def _add_sizes(axis: Axes, rows: list[StoredRows], colors: dict[str, str], theme: Theme) -> None:
    width = GROUP_WIDTH / len(colors)
    for number, (name, color) in enumerate(colors.items()):
        places = np.arange(len(rows)) - GROUP_WIDTH / 2 + (number + 0.5) * width
        sizes = np.array([row.stored_bits[name] for row in rows]) / [[sum(row.stored_bits[REFERENCE])] for row in rows]
        axis.bar(places, sizes[:, 0], width, color=color)
        axis.bar(places, sizes[:, 1], width, bottom=sizes[:, 0], color=[shade_of(color, SHADES[2], theme)])
    axis.axhline(1, color=theme.muted, lw=1.0)
    axis.set_xticks(np.arange(len(rows)), [row.bits for row in rows])
    axis.grid(axis="y", color=theme.grid, lw=0.8)


def draw_traffic(traffic: list[SchemeTraffic], theme: Theme) -> Figure:
    """A bar a scheme, stacked by what is read, with its total over the first of its group."""
    figure = new_figure(theme, 1.1 + 0.34 * len(traffic))
    (axis,) = new_axes(figure, theme)
    rows, left = np.arange(len(traffic)), np.zeros(len(traffic))
    for color, part in zip(RUN_COLORS, TRAFFIC_PARTS, strict=False):
        megabytes = np.array([one.parts[part] / 1e6 for one in traffic])
        axis.barh(rows, megabytes, left=left, height=0.66, color=color)
        left = left + megabytes
    first = {}
    for one, total in zip(traffic, left, strict=True):
        first.setdefault(one.group, total)
    for row, total in enumerate(left):
        over = total / first[traffic[row].group] if first[traffic[row].group] else 1.0
        axis.annotate(f"{format_number(total)} MB   {over:.2f}", (total, row), xytext=(6, 0), va="center",
                      textcoords="offset points", color=theme.ink, fontsize=SMALL_FONT_SIZE)
    axis.set_yticks(rows, [f"{one.group}: {one.scheme}" for one in traffic], color=theme.ink)
    axis.set_ylim(len(traffic) - 0.5, -0.5)
    axis.set_xlim(0, max(1.25 * left.max(), 1e-9))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.grid(axis="x", color=theme.grid, lw=0.8)
    axis.set_xlabel("MB", color=theme.ink, fontsize=FONT_SIZE)
    add_legend(figure, theme, [Patch(facecolor=color, label=PART_NAMES[part])
                               for color, part in zip(RUN_COLORS, TRAFFIC_PARTS, strict=False)])
    return figure
