"""Print what shards hold: the graph, its cleaning, its parts and what they send each other; draw the parts.

Nothing is counted or read here.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from hpcgnn.cli.messages import (
    bits_line,
    degree_line,
    histogram_lines,
    importance_table,
    pairs_table,
)
from hpcgnn.datasets.dataset import CleaningReport
from hpcgnn.errors import ConfigError
from hpcgnn.partition.statistics import PartitionStatistics
from hpcgnn.shards.schema import GraphInfo, Provenance

# Heading of the table, and the count of PartitionStatistics under it.
COLUMNS = {"inner": "num_inner", "central": "num_central", "boundary": "num_boundary", "halo": "num_halo",
           "edges": "num_edges", "cut edges": "num_cut_edges", "volume": "num_sent"}
MAX_WIDTH = 1000
SHOWN_CLASSES = 12


def print_info(info: GraphInfo, shows_reading: bool = True) -> None:
    """Print the graph, what was read, and the table of its parts to standard output.

    shows_reading : bool      False where what was read has been printed before
    """
    if shows_reading:
        print_reading(info.provenance.source, info.cleaning)
    labels = {"classes": "classes", "multi-label": "labels", "regression": "targets of a regression"}[info.task]
    click.echo(f"{info.name}: {info.num_nodes:,} nodes, {info.num_edges:,} edges, {info.num_features:,} "
               f"{info.feature_dtype} features, {info.num_classes:,} {labels}; "
               f"{info.num_train:,} train, {info.num_val:,} val, {info.num_test:,} test")
    for line in fact_lines(info):
        click.echo(line)
    click.echo(f"source {info.provenance.source}, by hpcgnn {info.hpcgnn_version}, run {info.run_id[:8]}")
    if "volume_before" in info.provenance.settings:
        click.echo(refinement_line(info.provenance.settings))
    print_table(parts_table(info))


def refinement_line(settings: dict) -> str:
    """Say what the refinement of parts changed, from what Refinement.as_settings left in the shards."""
    def change(name: str, form: str) -> str:
        return f"{settings[f'{name}_before']:{form}} to {settings[f'{name}_after']:{form}}"

    return (f"refinement: volume {change('volume', ',')}, cut edges {change('num_cut_edges', ',')}, imbalance of nodes "
            f"{change('node_imbalance', '.3f')} and of edges {change('edge_imbalance', '.3f')}; arcs taken as edges")


def fact_lines(info: GraphInfo) -> list[str]:
    """Say what a graph has beyond numbered nodes, numbered classes and edges that weigh the same."""
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
    if info.num_clusters:
        lines.append(f"clusters: {info.num_clusters:,}, of {info.num_nodes / info.num_clusters:.0f} nodes on average")
    return lines


def print_messages(info: GraphInfo, level_bins: tuple[int, ...], dim: int) -> None:
    """Print how important the rows that cross are, and their bytes by pair of parts.

    Parameters
    ----------
    level_bins : what level_bins_of returns
    dim : int                 columns of a row
    """
    if not any(row.num_sent for row in info.statistics):
        click.echo("no row crosses between parts")
        return
    click.echo(degree_line(info))
    print_table(importance_table(info, level_bins))
    click.echo(bits_line(info, level_bins))
    for line in histogram_lines(info):
        click.echo(line)
    print_table(pairs_table(info, dim))


def print_table(table: Table) -> None:
    """Print a table as wide as its digits need, whatever the terminal: a narrow one folds lines."""
    console = Console()
    needed = console.measure(table, options=console.options.update(width=MAX_WIDTH)).maximum
    Console(width=max(console.width, needed)).print(table)


def print_reading(source: str, cleaning: CleaningReport) -> None:
    """Print the screen of what was read; of shards that have none, what cleaning did."""
    click.echo(f"what was read from {source}")
    click.echo(str(cleaning.read) if cleaning.read.lines else "\n".join(f"  {line}" for line in _lines_of(cleaning)))


def _lines_of(cleaning: CleaningReport) -> list[str]:
    direction = "every edge holds both ways" if cleaning.is_symmetric else "edges are directed"
    return [
        f"{cleaning.source_edges:,} edges read, {cleaning.duplicate_edges_removed:,} duplicates and "
        f"{cleaning.self_loops_removed:,} self-loops removed, {cleaning.reverse_edges_added:,} reverse edges added; "
        f"{cleaning.isolated_nodes:,} isolated nodes; {direction}",
        *cleaning.remarks,
    ]


def parts_table(info: GraphInfo) -> Table:
    """One row a part and one for their sum, whose imbalances are the largest."""
    table = Table(title=f"{info.num_parts} parts by {_choices(info.provenance)}",
                  caption="volume: rows sent in an exchange; imbalance: inner rows, and edges, over their mean",
                  title_justify="left", caption_justify="left",
                  box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for heading in ("part", *COLUMNS, "imbalance", "of edges"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in info.statistics:
        table.add_row(str(row.part), *(f"{getattr(row, name):,}" for name in COLUMNS.values()), f"{row.imbalance:.3f}",
                      f"{edge_imbalance(row, info):.3f}")
    table.add_section()
    sums = (f"{sum(getattr(row, name) for row in info.statistics):,}" for name in COLUMNS.values())
    table.add_row("all", *sums, f"{max(row.imbalance for row in info.statistics):.3f}",
                  f"{max(edge_imbalance(row, info) for row in info.statistics):.3f}")
    return table


def edge_imbalance(row: PartitionStatistics, info: GraphInfo) -> float:
    """Edges of a part over the mean of all parts; 1 in a graph without edges."""
    return row.num_edges * info.num_parts / info.num_edges if info.num_edges else 1.0


def _choices(provenance: Provenance) -> str:
    """Say how parts and rows were chosen; shards of an earlier version name no balance and no reorder."""
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
