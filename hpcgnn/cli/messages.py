"""This module makes tables of what an exchange between parts carries: importance of rows, and bytes by pair.

Everything is taken from graph.h5; nothing is read or printed here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich import box
from rich.table import Table

from hpcgnn.partition.importance import IMPORTANCE_BINS
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.units import size_text

QUANTILES = {"min": 0, "25 %": 25, "median": 50, "75 %": 75, "90 %": 90, "99 %": 99, "max": 100}
WIDTHS = {"fp32": 32, "8 bits": 8, "1 bit": 1}
LARGEST_WIDTH = 8
PARAMETER_BYTES = 4     # of a row of 1 to 8 bits
NUM_BARS, BAR_LENGTH = 10, 40
MAX_PAIRS = 12          # parts up to 4 are listed pair by pair
NUM_WORST = 8


def level_bins_of(percentiles: tuple[float, ...]) -> tuple[int, ...]:
    """Return the bins of the histogram of importance at which levels begin, given where as percentiles that fall on the
    edges of bins.
    """
    return tuple(round(percentile * IMPORTANCE_BINS / 100) for percentile in percentiles)


def degree_line(info: GraphInfo) -> str:
    """The in-degrees of the boundary nodes of all parts as one sentence."""
    num_boundary = sum(row.num_boundary for row in info.statistics)
    quantiles = (f"{name} {info.boundary_degree[percent]:,}" for name, percent in QUANTILES.items())
    return f"in-degree of {num_boundary:,} boundary rows: {', '.join(quantiles)}"


def importance_table(info: GraphInfo, level_bins: tuple[int, ...]) -> Table:
    """Boundary rows and rows sent between two percentiles of importance, and the bits that they get at base 1."""
    boundary, sent = _histograms(info)
    table = _table("importance of boundary rows: the rank of their in-degree")
    for heading in ("from", "to", "bits", "boundary rows", "share", "rows sent", "share "):
        table.add_column(heading, justify="right", no_wrap=True)
    edges = [0, *level_bins, IMPORTANCE_BINS]
    for first, last, bits in zip(edges, edges[1:], _level_widths(level_bins), strict=False):
        counts = boundary[first:last].sum(), sent[first:last].sum()
        table.add_row(_percent(first), _percent(last), str(bits), f"{counts[0]:,}", _share(counts[0], boundary),
                      f"{counts[1]:,}", _share(counts[1], sent))
    return table


def bits_line(info: GraphInfo, level_bins: tuple[int, ...]) -> str:
    """Bits that a value sent gets at base 1, of all parts and of the parts with least and most, as one sentence."""
    _, sent = _histograms(info)
    bits = {row.part: _mean_bits(np.array(row.sent_importance), level_bins) for row in info.statistics if row.num_sent}
    least, most = min(bits, key=bits.get), max(bits, key=bits.get)
    return (f"at base 1 a value sent has {_mean_bits(sent, level_bins):.2f} bits: "
            f"from part {least} {bits[least]:.2f}, from part {most} {bits[most]:.2f}")


def histogram_lines(info: GraphInfo) -> Iterator[str]:
    """Rows sent by tenths of importance, one bar each."""
    _, sent = _histograms(info)
    counts = sent.reshape(NUM_BARS, -1).sum(axis=1)
    yield "rows sent by importance"
    for tenth, count in enumerate(counts):
        bar = "#" * round(BAR_LENGTH * count / counts.max())
        yield f"{10 * tenth:3} to {10 * tenth + 10:3} %  {_share(count, sent):>6}  {bar}".rstrip()


def pairs_table(info: GraphInfo, dim: int) -> Table:
    """Rows by owner and user and what one exchange of them costs; of many parts the spread and the worst pairs.

    Parameters
    ----------
    dim : int                 columns of the rows that are exchanged
    """
    rows = np.array([row.sent_to for row in info.statistics])
    owner, user = np.nonzero(~np.eye(info.num_parts, dtype=bool))
    count = rows[owner, user]
    table = _table(f"one exchange of {dim:,} columns by pair", "gradients cost the same on the way back")
    for heading in ("owner", "user", "rows", *WIDTHS):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = np.arange(len(count))
    if len(count) > MAX_PAIRS:
        for name, value in (("min", count.min()), ("median", int(np.median(count))), ("max", count.max())):
            table.add_row("", name, *_costs(value, dim))
        table.add_section()
        shown = np.argsort(-count, kind="stable")[:NUM_WORST]
    for pair in shown:
        table.add_row(str(owner[pair]), str(user[pair]), *_costs(count[pair], dim))
    table.add_section()
    table.add_row("all", "", *_costs(count.sum(), dim))
    return table


def row_bytes(bit_width: int, dim: int) -> int:
    """Bytes of one row in a message, its parameters included."""
    return (bit_width * dim + 7) // 8 + (PARAMETER_BYTES if bit_width <= LARGEST_WIDTH else 0)


def _costs(num_rows: int, dim: int) -> list[str]:
    return [f"{num_rows:,}", *(size_text(num_rows * row_bytes(width, dim)) for width in WIDTHS.values())]


def _table(title: str, caption: str = "") -> Table:
    """An empty table, wide enough for its title and caption, which would be folded else."""
    return Table(min_width=max(len(title), len(caption)), title=title, caption=caption, title_justify="left",
                 caption_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


def _histograms(info: GraphInfo) -> tuple[np.ndarray, np.ndarray]:
    """Boundary rows and rows sent of all parts by importance, (IMPORTANCE_BINS,) int64 each."""
    return (np.sum([row.boundary_importance for row in info.statistics], axis=0),
            np.sum([row.sent_importance for row in info.statistics], axis=0))


def _level_widths(level_bins: tuple[int, ...]) -> list[int]:
    return [min(LARGEST_WIDTH, 2 ** level) for level in range(len(level_bins) + 1)]


def _mean_bits(histogram: np.ndarray, level_bins: tuple[int, ...]) -> float:
    """Bits a value of rows whose width doubles at every percentile; the histogram holds a row at least."""
    level = np.searchsorted(level_bins, np.arange(IMPORTANCE_BINS), side="right")
    return float(np.average(np.array(_level_widths(level_bins))[level], weights=histogram))


def _percent(first_bin: int) -> str:
    return f"{100 * first_bin / IMPORTANCE_BINS:g} %"


def _share(count: int, histogram: np.ndarray) -> str:
    return f"{100 * count / histogram.sum():.1f} %"
