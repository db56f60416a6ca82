"""Print what an epoch computes in each part, and what its ranks took where a run says it."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from rich import box
from rich.table import Table

from hpcgnn.cli.graph_text import print_table
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import MOST_LAYERS
from hpcgnn.partition.work import hops_to_loss, work_of_parts
from hpcgnn.planning.graphs import graph_of_shards
from hpcgnn.report.measured import read_measured


def print_work(shards: Path, model: str) -> None:
    """Print the work of each part over the mean and, of a run, the seconds of each rank over theirs.

    Parameters
    ----------
    model : str      a number of layers, or a run folder

    Raises
    ------
    ConfigError      neither, or a run of another number of ranks
    ShardError       see `graph_of_shards`
    """
    measured = None if model.isascii() and model.isdigit() else read_measured(Path(model))
    num_layers = int(model) if measured is None else measured.num_layers
    if not 1 <= num_layers <= MOST_LAYERS:
        raise ConfigError(f"an epoch is of 1 to {MOST_LAYERS} layers, found {num_layers}")
    graph = graph_of_shards(shards)
    if measured is not None and len(measured.seconds) != graph.own_parts:
        raise ConfigError(f"{model} had {len(measured.seconds)} ranks, and the shards have {graph.own_parts} parts; "
                          "give a run on these shards")
    hops = hops_to_loss(graph.indptr, graph.indices, graph.train_mask, num_layers)
    work = work_of_parts(np.diff(graph.indptr), hops, num_layers, graph.owner, graph.own_parts)
    click.echo(f"an epoch of {num_layers} layers, part by part; work: rows that training computes, once for each layer "
               "that does, and their edges")
    print_table(work_table(work, None if measured is None else np.array(measured.seconds)))


def work_table(work: np.ndarray, seconds: np.ndarray | None) -> Table:
    """Return a table of the work and the seconds of parts, (num_parts,) each; its last row has the largest of each."""
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    columns = {"part": [str(part) for part in range(len(work))], "work share": [f"{share:.4f}" for share in work /
               max(work.sum(), 1.0)], "over mean": [f"{ratio:.3f}" for ratio in _over_mean(work)]}
    last = ["all", "", f"{_over_mean(work).max():.3f}"]
    if seconds is not None:
        columns |= {"compute s": [f"{second:.4g}" for second in seconds],
                    "s over mean": [f"{ratio:.3f}" for ratio in _over_mean(seconds)]}
        last += ["", f"{_over_mean(seconds).max():.3f}"]
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    table.add_section()
    table.add_row(*last)
    return table


def _over_mean(values: np.ndarray) -> np.ndarray:
    return values / max(values.mean(), 1e-300)
