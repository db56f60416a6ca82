"""Output of `hpcgnn inspect` about shards: graph, cleaning, parts, messages, packages and work; and a picture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import numpy as np
from rich import box
from rich.table import Table

from hpcgnn.data.dataset import CleaningReport
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import MOST_LAYERS
from hpcgnn.partition.partition import IMPORTANCE_BINS, PartitionStatistics
from hpcgnn.partition.work import hops_to_loss, work_of_parts
from hpcgnn.planning.graphs import graph_of_shards
from hpcgnn.report.run_folder import read_measured
from hpcgnn.run.output import print_fitted, size_text, terminal_width, wrapped
from hpcgnn.shards.schema import GraphInfo, Provenance

# Heading of the table, and the count of PartitionStatistics under it.
COLUMNS = {"inner": "num_inner", "central": "num_central", "boundary": "num_boundary", "halo": "num_halo",
           "edges": "num_edges", "cut edges": "num_cut_edges", "volume": "num_sent"}
SHOWN_CLASSES = 12


def print_info(info: GraphInfo, shows_reading: bool = True) -> None:
    """Print the graph, what was read, and the table of its parts.

    `shows_reading` is False if what was read has already been printed.
    """
    if shows_reading:
        print_reading(info.provenance.source, info.cleaning)
    labels = {"classes": "classes", "multi-label": "labels", "regression": "targets of a regression"}[info.task]
    lines = [f"{info.name}: {info.num_nodes:,} nodes, {info.num_edges:,} edges, {info.num_features:,} "
             f"{info.feature_dtype} features, {info.num_classes:,} {labels}; "
             f"{info.num_train:,} train, {info.num_val:,} val, {info.num_test:,} test",
             *fact_lines(info),
             f"source {info.provenance.source}, by hpcgnn {info.hpcgnn_version}, run {info.run_id[:8]}"]
    if "volume_before" in info.provenance.settings:
        lines.append(refinement_line(info.provenance.settings))
    for line in lines:
        click.echo(wrapped(line))
    print_table(parts_table(info))


def refinement_line(settings: dict) -> str:
    """What the refinement of parts changed, as Refinement.as_settings stored it in the shards."""
    def change(name: str, form: str) -> str:
        return f"{settings[f'{name}_before']:{form}} to {settings[f'{name}_after']:{form}}"

    return (f"refinement: volume {change('volume', ',')}, cut edges {change('num_cut_edges', ',')}, imbalance of nodes "
            f"{change('node_imbalance', '.3f')} and of edges {change('edge_imbalance', '.3f')}; directions ignored")


def fact_lines(info: GraphInfo) -> list[str]:
    """Class names, node ids, what edges carry and held-out links, if the graph has them, and clusters."""
    lines = []
    if info.class_names:
        shown = ", ".join(info.class_names[:SHOWN_CLASSES])
        more = len(info.class_names) - SHOWN_CLASSES
        lines.append(f"classes by name: {shown}{f' and {more:,} more' if more > 0 else ''}")
    if info.node_names != "none":
        kind = {"integers": "integers of the source's own", "texts": "texts"}[info.node_names]
        lines.append(f"ids of nodes: {kind}; predictions come back under them")
    if info.has_edge_weights:
        lines.append("edges have weights")
    carried = [f"{number:,} {what}{'s' * (number > 1)}" for number, what in (
        (len(info.relation_names), "relation"), (info.num_edge_features, "attribute")) if number]
    if carried:
        lines.append(f"edges have {' and '.join(carried)}")
    if info.links_of_parts:
        lines.append(f"held-out links: {info.num_val_links:,} for validation, {info.num_test_links:,} for test")
    if info.num_clusters:
        lines.append(f"clusters: {info.num_clusters:,}, of {info.num_nodes / info.num_clusters:.0f} nodes on average")
    else:
        lines.append("clusters: none are stored; in a training in steps, each rank cuts its own")
    return lines


def print_messages(info: GraphInfo, level_bins: tuple[int, ...], dim: int) -> None:
    """Print the importance of the rows that are sent, and their bytes by pair of parts.

    `level_bins` is what `level_bins_of` returns, `dim` the columns of a row.
    """
    if not any(row.num_sent for row in info.statistics):
        click.echo("no row crosses between parts")
        return
    click.echo(wrapped(degree_line(info)))
    print_table(importance_table(info, level_bins))
    click.echo(wrapped(bits_line(info, level_bins)))
    for line in histogram_lines(info):
        click.echo(line)
    print_table(pairs_table(info, dim))


def print_table(table: Table) -> None:
    print_fitted(table, sys.stdout, terminal_width())


def print_reading(source: str, cleaning: CleaningReport) -> None:
    click.echo(f"what was read from {source}")
    click.echo(str(cleaning.read) if cleaning.read.lines else "\n".join(
        wrapped(f"  {line}", indent=4) for line in _lines_of(cleaning)))


def _lines_of(cleaning: CleaningReport) -> list[str]:
    direction = "every edge holds both ways" if cleaning.is_symmetric else "edges are directed"
    return [
        f"{cleaning.source_edges:,} edges read, {cleaning.duplicate_edges_removed:,} duplicates and "
        f"{cleaning.self_loops_removed:,} self-loops removed, {cleaning.reverse_edges_added:,} reverse edges added; "
        f"{cleaning.isolated_nodes:,} isolated nodes; {direction}",
        *cleaning.remarks,
    ]


def number_table(headings: Iterable[str], title: str | None = None, caption: str | None = None,
                 min_width: int | None = None) -> Table:
    """An empty table of numbers, on the right of their columns."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD,
                  collapse_padding=True, pad_edge=False, min_width=min_width)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def parts_table(info: GraphInfo) -> Table:
    table = number_table(("part", *COLUMNS, "imbalance", "of edges"),
                         f"{info.num_parts} parts by {_choices(info.provenance)}",
                         "volume: rows sent in an exchange; imbalance: inner rows, and edges, over their mean")
    for row in info.statistics:
        table.add_row(str(row.part), *(f"{getattr(row, name):,}" for name in COLUMNS.values()), f"{row.imbalance:.3f}",
                      f"{edge_imbalance(row, info):.3f}")
    table.add_section()
    sums = (f"{sum(getattr(row, name) for row in info.statistics):,}" for name in COLUMNS.values())
    table.add_row("all", *sums, f"{max(row.imbalance for row in info.statistics):.3f}",
                  f"{max(edge_imbalance(row, info) for row in info.statistics):.3f}")
    return table


def edge_imbalance(row: PartitionStatistics, info: GraphInfo) -> float:
    """Ratio of a part's edges to the mean of all parts; 1 in a graph without edges."""
    return row.num_edges * info.num_parts / info.num_edges if info.num_edges else 1.0


def _choices(provenance: Provenance) -> str:
    # Shards of an earlier version record neither balance nor reorder.
    known = [f"{name} {provenance.settings[name]}" for name in ("balance", "reorder") if name in provenance.settings]
    return ", ".join([provenance.partitioner, f"seed {provenance.seed}", *known])


def plot_parts(info: GraphInfo, path: Path) -> None:
    """Draw rows and edges of each part as stacked bars.

    Raises
    ------
    ConfigError               matplotlib is not installed, or the file can't be written
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ConfigError("--plot needs matplotlib, which is not installed; "
                          "run pip install 'hpcgnn[report]'") from missing
    figure = Figure(figsize=(9, 4), layout="constrained")
    rows, edges = figure.subplots(1, 2)
    _draw_bars(rows, info.statistics, "rows", {
        "central": lambda row: row.num_central, "marginal": lambda row: row.num_inner - row.num_central,
        "halo": lambda row: row.num_halo})
    _draw_bars(edges, info.statistics, "edges", {
        "inside": lambda row: row.num_edges - row.num_cut_edges, "cut": lambda row: row.num_cut_edges})
    figure.suptitle(f"{info.name}: {info.num_parts} parts by {info.provenance.partitioner}")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as reason:
        raise ConfigError(f"the picture {path} can't be written: {reason}") from reason


def _draw_bars(axes, statistics: tuple[PartitionStatistics, ...], title: str, counts: dict) -> None:
    parts = [row.part for row in statistics]
    base = [0] * len(parts)
    for label, count in counts.items():
        height = [count(row) for row in statistics]
        axes.bar(parts, height, bottom=base, label=label)
        base = [low + high for low, high in zip(base, height, strict=True)]
    axes.set(title=title, xlabel="part")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(counts), frameon=False)


QUANTILES = {"min": 0, "25 %": 25, "median": 50, "75 %": 75, "90 %": 90, "99 %": 99, "max": 100}
WIDTHS = {"fp32": 32, "8 bits": 8, "1 bit": 1}
LARGEST_WIDTH = 8
PARAMETER_BYTES = 4     # parameters of a row of 1 to 8 bits
NUM_BARS, BAR_LENGTH = 10, 40
MAX_PAIRS = 12          # parts up to 4 are listed pair by pair
NUM_WORST = 8


def level_bins_of(percentiles: tuple[float, ...]) -> tuple[int, ...]:
    """Bins of the histogram of importance at which levels begin; the percentiles fall on edges of bins."""
    return tuple(round(percentile * IMPORTANCE_BINS / 100) for percentile in percentiles)


def degree_line(info: GraphInfo) -> str:
    num_boundary = sum(row.num_boundary for row in info.statistics)
    quantiles = (f"{name} {info.boundary_degree[percent]:,}" for name, percent in QUANTILES.items())
    return f"in-degree of {num_boundary:,} boundary rows: {', '.join(quantiles)}"


def importance_table(info: GraphInfo, level_bins: tuple[int, ...]) -> Table:
    """Boundary rows and rows sent between two percentiles of importance, and the bits that they get at base 1."""
    boundary, sent = _histograms(info)
    title = "importance of boundary rows: the rank of their in-degree"
    table = number_table(("from", "to", "bits", "boundary rows", "share", "rows sent", "share "), title,
                         min_width=len(title))
    edges = [0, *level_bins, IMPORTANCE_BINS]
    for first, last, bits in zip(edges, edges[1:], _level_widths(level_bins), strict=False):
        counts = boundary[first:last].sum(), sent[first:last].sum()
        table.add_row(_percent(first), _percent(last), str(bits), f"{counts[0]:,}", _share(counts[0], boundary),
                      f"{counts[1]:,}", _share(counts[1], sent))
    return table


def bits_line(info: GraphInfo, level_bins: tuple[int, ...]) -> str:
    """Mean bits of a sent value at base 1: of all parts, and of the parts with the fewest and most; as one sentence."""
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
    """Rows by owner and receiver, and the bytes of one exchange; for many parts, the spread and the worst pairs."""
    rows = np.array([row.sent_to for row in info.statistics])
    owner, user = np.nonzero(~np.eye(info.num_parts, dtype=bool))
    count = rows[owner, user]
    title, caption = f"one exchange of {dim:,} columns by pair", "gradients cost the same on the way back"
    table = number_table(("owner", "user", "rows", *WIDTHS), title, caption, max(len(title), len(caption)))
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
    """Bytes of one row in a message, with its parameters."""
    return (bit_width * dim + 7) // 8 + (PARAMETER_BYTES if bit_width <= LARGEST_WIDTH else 0)


def _costs(num_rows: int, dim: int) -> list[str]:
    return [f"{num_rows:,}", *(size_text(num_rows * row_bytes(width, dim)) for width in WIDTHS.values())]


def _histograms(info: GraphInfo) -> tuple[np.ndarray, np.ndarray]:
    return (np.sum([row.boundary_importance for row in info.statistics], axis=0),
            np.sum([row.sent_importance for row in info.statistics], axis=0))


def _level_widths(level_bins: tuple[int, ...]) -> list[int]:
    return [min(LARGEST_WIDTH, 2 ** level) for level in range(len(level_bins) + 1)]


def _mean_bits(histogram: np.ndarray, level_bins: tuple[int, ...]) -> float:
    # The width doubles at every percentile.
    level = np.searchsorted(level_bins, np.arange(IMPORTANCE_BINS), side="right")
    return float(np.average(np.array(_level_widths(level_bins))[level], weights=histogram))


def _percent(first_bin: int) -> str:
    return f"{100 * first_bin / IMPORTANCE_BINS:g} %"


def _share(count: int, histogram: np.ndarray) -> str:
    return f"{100 * count / histogram.sum():.1f} %"


def print_work(shards: Path, model: str) -> None:
    """Print each part's ratio of work to the mean and, for a run, each rank's ratio of seconds to the mean.

    Parameters
    ----------
    model : str      a number of layers, or a run folder

    Raises
    ------
    ConfigError      `model` is neither, or a run with another number of ranks
    ShardError       see `graph_of_shards`
    """
    measured = None if model.isascii() and model.isdigit() else read_measured(Path(model))
    num_layers = int(model) if measured is None else measured.num_layers
    if not 1 <= num_layers <= MOST_LAYERS:
        raise ConfigError(f"an epoch is of 1 to {MOST_LAYERS} layers, found {num_layers}")
    graph = graph_of_shards(shards)
    dataset = graph.dataset
    if measured is not None and len(measured.seconds) != graph.own_parts:
        raise ConfigError(f"{model} had {len(measured.seconds)} ranks, and the shards have {graph.own_parts} parts; "
                          "give a run on these shards")
    hops = hops_to_loss(dataset.indptr, dataset.indices, dataset.train_mask, num_layers)
    work = work_of_parts(np.diff(dataset.indptr), hops, num_layers, graph.owner, graph.own_parts)
    click.echo(wrapped(f"an epoch of {num_layers} layers, part by part; work: rows that training computes, counted "
                       "once for each layer, and their edges"))
    print_table(work_table(work, None if measured is None else np.array(measured.seconds)))


def work_table(work: np.ndarray, seconds: np.ndarray | None) -> Table:
    columns = {"part": [str(part) for part in range(len(work))], "work share": [f"{share:.4f}" for share in work /
               max(work.sum(), 1.0)], "over mean": [f"{ratio:.3f}" for ratio in _over_mean(work)]}
    last = ["all", "", f"{_over_mean(work).max():.3f}"]
    if seconds is not None:
        columns |= {"compute s": [f"{second:.4g}" for second in seconds],
                    "s over mean": [f"{ratio:.3f}" for ratio in _over_mean(seconds)]}
        last += ["", f"{_over_mean(seconds).max():.3f}"]
    table = number_table(columns)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    table.add_section()
    table.add_row(*last)
    return table


def _over_mean(values: np.ndarray) -> np.ndarray:
    return values / max(values.mean(), 1e-300)
