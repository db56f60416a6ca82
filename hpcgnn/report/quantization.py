"""The figure of widths that degree-aware training chose: bits of a node's row by its in-degree, a panel a run.

Each layer has a shade of its run's color.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator, StrMethodFormatter

from hpcgnn.report.canvas import (
    FONT_SIZE,
    NumberedRuns,
    Theme,
    add_legend,
    add_run_title,
    new_axes,
    new_figure,
    run_color,
    set_label,
    shade_of,
)

PALEST = 0.35                  # share of the last layer's shade
LAYERS_APART = 0.6             # bits over which layers of one width are spread, so that none hides another
SMALLEST, LARGEST = 5, 45      # areas of dots, in points squared


def draw_degree_widths(runs: NumberedRuns, theme: Theme) -> Figure:
    """Dots at in-degree and width; their area grows with the root of the share of nodes."""
    figure = new_figure(theme, 0.9 + 2.0 * len(runs))
    axes = new_axes(figure, theme, rows=len(runs), sharex=True)
    for axis, (number, run) in zip(axes, runs, strict=True):
        _add_layers(axis, run.summary["widths_by_degree"], run_color(number), theme)
        add_run_title(axis, run, theme)
    axes[-1].set_xlabel("in-degree", color=theme.ink, fontsize=FONT_SIZE)
    num_layers = max(len(run.summary["widths_by_degree"]) for _, run in runs)
    shades = _shades(theme.muted, num_layers, theme)
    add_legend(figure, theme, [Line2D([], [], color=shade, marker="o", ls="", label=f"rows {layer + 1}")
                               for layer, shade in enumerate(shades)])
    return figure


def _add_layers(axis: Axes, layers: list[dict[str, list[int]]], color: str, theme: Theme) -> None:
    offsets = np.linspace(-LAYERS_APART / 2, LAYERS_APART / 2, len(layers)) if len(layers) > 1 else [0.0]
    for layer, offset, shade in zip(layers, offsets, _shades(color, len(layers), theme), strict=True):
        share = np.sqrt(np.array(layer["num_nodes"]) / max(layer["num_nodes"]))
        axis.scatter(layer["in_degree"], np.array(layer["bit_width"]) - offset, color=[shade], lw=0,
                     s=SMALLEST + (LARGEST - SMALLEST) * share)
    fewest = min(min(layer["in_degree"]) for layer in layers)
    axis.set_xscale("log" if fewest else "symlog", **({} if fewest else {"linthresh": 1}))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.yaxis.set_major_locator(MultipleLocator(1))
    widest = max(max(layer["bit_width"]) for layer in layers)
    axis.set_ylim(0.4, widest + 0.6)
    axis.grid(color=theme.grid, lw=0.8)
    set_label(axis, theme, "bits")


def _shades(color: str, count: int, theme: Theme) -> list[np.ndarray]:
    """Return `count` shades, from the color itself to its palest one."""
    return [shade_of(color, share, theme) for share in np.linspace(1.0, PALEST, count)]
