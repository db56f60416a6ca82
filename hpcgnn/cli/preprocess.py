"""`hpcgnn preprocess`: load and clean a source graph, partition it and write its shards, in one process or on ranks."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcgnn.cli import GivenPath
from hpcgnn.data.options import FEATURES, NON_FINITE, NORMALIZATIONS, TASKS, silent
from hpcgnn.partition.choices import (
    BALANCES,
    DEFAULT_PARTITIONER,
    DEFAULT_REORDER,
    EDGES_A_NODE,
    FRUGAL_PARTITIONERS,
    PARTITIONERS,
    REORDERS,
    ROWS_A_CLUSTER,
    split_balance,
)
from hpcgnn.run.output import size_text, time_text
from hpcgnn.run.process import launched_rank, launched_size
from hpcgnn.shards.feature_formats import FEATURE_FORMATS

if TYPE_CHECKING:
    from hpcgnn.shards.folder import Crew
    from hpcgnn.shards.schema import GraphInfo


class BalanceChoice(click.Choice):
    """One of the choices, or training:L or run:FOLDER."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if split_balance(value)[0] else super().convert(value, param, ctx)


class PartitionerChoice(click.Choice):
    """One of the choices, or a file or shards with the part of each node."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if Path(value).exists() else super().convert(value, param, ctx)


@click.command()
@click.argument("source")
@click.option("--out", type=GivenPath(), required=True, help="Folder for the shards.")
@click.option("--parts", type=click.IntRange(min=1), required=True, help="Number of parts: ranks of the training.")
@click.option("--partitioner", type=PartitionerChoice(PARTITIONERS), metavar=f"[{'|'.join(PARTITIONERS)}|FILE|DIR]",
              default=DEFAULT_PARTITIONER, show_default=True,
              help="kaminpar and metis minimize the rows sent, metis-cut minimizes cut edges; ldg streams graphs too "
                   "large for them. The first three balance what --balance says; ldg, random and contiguous balance "
                   "nodes. FILE lists the part of each node: one number per line as METIS writes it, or id,part. DIR "
                   "has shards: their nodes stay in their parts, and new ones join most of their neighbors.")
@click.option("--balance", type=BalanceChoice(BALANCES), metavar="WHAT",
              help="What all parts of kaminpar and METIS share equally: nodes, edges, or both, the work of a layer, "
                   f"for which a node counts as {EDGES_A_NODE} edges; training:L counts this work in each of L layers "
                   "that computes the node in an epoch; run:FOLDER also weighs it by the seconds that the ranks of "
                   "that run took. [default: both; nodes for other partitioners]")
@click.option("--reorder", type=click.Choice(REORDERS), default=DEFAULT_REORDER, show_default=True,
              help="Order of rows inside a part: nested lays out clusters within clusters, for every level of cache; "
                   "metis lays out clusters that fit one level, which takes longer; degree puts rows with many "
                   "in-neighbors first; rcm is reverse Cuthill-McKee; condense-edge lays out smaller clusters, and in "
                   "each puts the rows that others read first; none keeps the source's order. Losses stay the same.")
@click.option("--cluster-rows", type=click.IntRange(min=0), metavar="N",
              help="Cut the graph into clusters of about N nearby nodes and store the cluster of each node, for "
                   "training in steps; 100 to 128 are good. The whole graph is cut, in the same way for any --parts; 0 "
                   f"stores none. [default: {ROWS_A_CLUSTER}; 0 for {', '.join(FRUGAL_PARTITIONERS)}]")
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, show_default=True,
              help="Seed of the partitioner, of random splits and of synthetic graphs.")
@click.option("--symmetrize/--directed", default=False,
              help="Add the reverse of every edge that lacks it. If edges have relations, and not all hold both ways, "
                   "every edge gets a reverse of a relation of its own. [default: directed]")
@click.option("--root", type=GivenPath(),
              help="Folder of the datasets of OGB and PyTorch Geometric. [default: dataset]")
@click.option("--feature-format", "--feature-dtype", "feature_format", type=click.Choice(FEATURE_FORMATS),
              default="float32", show_default=True,
              help="How features are stored: as they are, as float16, or as packages of --feature-bits, which rounds "
                   "them unless they are multiples of few bits, as 0/1 features are.")
@click.option("--feature-bits", type=click.IntRange(1, 8), default=8, show_default=True,
              help="Widest row of features stored as packages; each row has its own scale, and fewer bits if they "
                   "hold it exactly. See docs/shards.md for what is lost.")
@click.option("--features", "feature_kind", type=click.Choice(FEATURES), default="auto", show_default=True,
              help="The source's features, or structural ones, made from the graph alone; auto makes them if there are "
                   "none.")
@click.option("--non-finite", type=click.Choice(NON_FINITE), default="error", show_default=True,
              help="What to do with NaN and infinite features.")
@click.option("--normalize-features", type=click.Choice(NORMALIZATIONS), default="auto", show_default=True,
              help="Scale rows to unit sum, or standardize columns on training nodes; auto is what is usual for a "
                   "public dataset (planetoid:, ogb:, graphsaint:), and none for your own files.")
@click.option("--split", type=(float, float), default=(0.6, 0.2), show_default=True, metavar="TRAIN VAL",
              help="Fractions of the labeled nodes if the source has no split; the rest is test.")
@click.option("--hold-out", type=(float, float), default=(0.0, 0.0), metavar="VAL TEST",
              help="Take these shares of the links out of the graph, drawn at random, or the last by the source's "
                   "time=COLUMN, to score a model that predicts links. Where every edge holds both ways, both go.")
@click.option("--hold-out-relation", default="", metavar="NAME",
              help="Take only links of this relation, such as user__rates__item.")
@click.option("--val-links", type=GivenPath(exists=True, dir_okay=False), metavar="FILE",
              help="Links to hold out for validation: two columns of ids, as in edges:FILE; if edges have relations "
                   "three, source, relation, target.")
@click.option("--test-links", type=GivenPath(exists=True, dir_okay=False), metavar="FILE",
              help="Links to hold out for test.")
@click.option("--task", type=click.Choice(TASKS), default="auto", show_default=True,
              help="What labels are: classes, several labels per node, or targets of a regression; auto takes numbers "
                   "with a fraction for targets.")
@click.option("--make-labels", type=click.IntRange(min=2), metavar="K",
              help="For a graph without labels: K classes of equal size by in-degree, to study speed and "
                   "stability. Scores on them are no benchmark.")
@click.option("--overwrite", is_flag=True, help="Replace the shards that the folder holds.")
def command(source: str, out: Path, **flags: Any) -> None:
    """Convert the graph SOURCE into HDF5 shards, one for each rank of the training. Under mpirun, ranks share the work.

    SOURCE is KIND:REST, for example synthetic:nodes=10000, npz:cora.npz, planetoid:FOLDER/ind.cora, ogb:ogbn-arxiv,
    graphsaint:FOLDER, edges:edges.csv.gz,labels=labels.csv, csv:edges.csv,nodes=nodes.csv, parquet:edges.parquet,
    pyg:data.pt, pyg:Planetoid/Cora or shards:FOLDER; docs/own-data.md describes all of them. MODULE:FUNCTION and
    FILE.py:FUNCTION name a function of your own that returns a graph. Objects in Python are taken by hpcgnn.preprocess.
    """
    # These import NumPy and SciPy, which help need not wait for.
    from hpcgnn.cli.graph_text import print_info
    from hpcgnn.run.output import wrapped
    from hpcgnn.shards.folder import ALONE, shards_in

    start = time.perf_counter()
    size = launched_size()[1]
    if size.isdecimal() and int(size) > 1:      # a launcher has started ranks; MPI is not touched otherwise
        from hpcgnn.library.preprocess import Ranks
        from hpcgnn.run.launch import run_parallel

        info = run_parallel(lambda comm: preprocess(source, out, flags, Ranks(comm)))
    else:
        info = preprocess(source, out, flags, ALONE)
    if launched_rank():
        return
    print_info(info, shows_reading=False)
    for text in info.what_was_read.dubious:     # shown again at the end, since a long cut lies between
        click.echo(wrapped(f"cleaning: dubious: {text}"))
    num_bytes = sum(path.stat().st_size for path in shards_in(out))
    click.echo(f"{out}: {size_text(num_bytes)} in {info.num_parts + 1} files, {time_text(time.perf_counter() - start)}")


def preprocess(source: str, out: Path, flags: dict[str, Any], crew: Crew) -> GraphInfo:
    """Collective: load and partition on rank 0, write on all."""
    from hpcgnn.cli.graph_text import print_reading
    from hpcgnn.cli.progress import shown_progress
    from hpcgnn.library.options import PreprocessOptions, preprocess_graph

    options = crew.together(lambda: PreprocessOptions(**flags).with_measured_run())
    with nullcontext(silent) if crew.rank else shown_progress(has_lines=True) as progress:
        return preprocess_graph(source, out, replace(options, progress=progress), crew,
                                lambda source, dataset: print_reading(source, dataset.cleaning), "--partitioner ldg")
