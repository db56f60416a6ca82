"""`hpcgnn infer`: computes predictions and embeddings of all nodes with an integer model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hpcgnn.cli import GivenPath
from hpcgnn.cli.grouped import parse_set
from hpcgnn.config import CLUSTERS_A_BATCH
from hpcgnn.run.output import size_text, time_text

SETTINGS: dict[str, click.ParamType] = {
    "batch_size": click.IntRange(min=1), "between_clusters": click.BOOL,
    "aggregation": click.Choice(("auto", "tiles", "gather")), "pack_features": click.BOOL}
DEFAULTS: dict[str, Any] = {"batch_size": None, "between_clusters": False, "aggregation": None, "pack_features": False}


class Widths(click.ParamType):
    """One width for weights and rows, or two: WEIGHTS,ROWS."""

    name = "widths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        bits = [click.IntRange(2, 8).convert(word, param, ctx) for word in value.split(",")]
        if len(bits) > 2:
            self.fail(f"{value!r} has {len(bits)} widths; expected BITS or WEIGHTS,ROWS.", param, ctx)
        return bits[0], bits[-1]


@click.command()
@click.argument("model", type=GivenPath())
@click.argument("shards", type=GivenPath())
@click.option("--bits", "widths", type=Widths(), metavar="BITS", help="Bits of weights and rows, if MODEL is a run "
              "folder; WEIGHTS,ROWS gives the rows that a layer reads bits of their own. [default: 8]")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Number of passes to time.")
@click.option("--timeout", type=click.FloatRange(min=0), default=1800.0, show_default=True,
              help="Seconds without progress after which all ranks end and one says where it is; 0 waits for ever.")
@click.option("--other-graph", is_flag=True, help="Predict for a graph that the model was not made on.")
@click.option("--clusters", type=click.IntRange(min=1), help="Cut the graph into this many METIS clusters "
              "and infer in batches of them; edges between clusters are left out. [default: the whole graph at once]")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True,
              help="Device that computes; with cuda, the ranks of a node divide its GPUs among them.")
@click.option("--packages", type=GivenPath(), help="Folder for the codes that layers read, as "
              "Adaptive-Packages; their size in each format is printed.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Of batches: batch_size, clusters per "
              f"batch ({CLUSTERS_A_BATCH}); between_clusters=true keeps the edges between clusters of one batch; "
              "aggregation, how neighbors are summed: by tiles of bits, gather (of rows), or auto, the faster way for "
              "each sum. pack_features=true keeps the codes that the first layer reads as Adaptive-Packages and "
              "multiplies from them: less memory and, if most values are zero, less time.")
@click.option("--out", type=GivenPath(), help="HDF5 file for predictions, logits and embeddings; "
              "without it none is written.")
def command(model: Path, shards: Path, out: Path | None, repeat: int, widths: tuple[int, int] | None,
            assignments: tuple[str, ...], **options: Any) -> None:
    """Predict for every node of the graph in SHARDS with MODEL, in integers, one MPI rank per part.

    MODEL is a file of hpcgnn quantize, or a run folder. The model of a run folder is quantized first, and float models
    of its shape are timed too, in float32 and bfloat16.
    """
    options |= DEFAULTS | parse_set(assignments, SETTINGS)
    options["bits"], options["row_bits"] = widths or (None, None)
    if options["clusters"] is None and any(options[name] for name in ("batch_size", "between_clusters", "aggregation")):
        raise click.UsageError("batch_size, between_clusters and aggregation are for batches; add --clusters")
    if options["clusters"] is not None and options["packages"] is not None:
        raise click.UsageError("--packages stores the codes of the whole graph; leave --clusters out")
    if options["clusters"] is not None and options["pack_features"]:
        raise click.UsageError("pack_features is for the whole graph, and batches store features in another form; "
                               "leave --clusters out")
    if options["device"] == "cuda" and options["pack_features"]:
        raise click.UsageError("pack_features multiplies from packages on the host, and a device stores bits in "
                               "another form; leave one of them out")
    # MPI is started, and the threads shared out, before torch is imported.
    from hpcgnn.run.launch import run_parallel

    run_parallel(lambda comm: infer_in_parallel(comm, model, shards, out, repeat, options))


def infer_in_parallel(comm, model: Path, shards: Path, out: Path | None, repeat: int, options: dict[str, Any]) -> None:
    """Collective: open the model, run and time it, write its predictions; rank 0 prints scores, bytes and times."""
    from hpcgnn.run.launch import choose_device, together, watch, watch_closely
    from hpcgnn.training.alike import check_same
    from hpcgnn.training.session import read_shared_info

    watch(comm, options["timeout"])
    info = read_shared_info(comm, shards)
    check_same(comm, {**options, "out": out, "repeat": repeat})
    # These import torch, which takes seconds, so checks without torch come before.
    from hpcgnn.lowbit.inference.model_source import open_model, timed
    from hpcgnn.lowbit.inference.predictions import write_predictions
    from hpcgnn.lowbit.inference.run import IntegerRun, peak_bytes
    from hpcgnn.results.answer_file import check_writable
    from hpcgnn.training.batch_graph import ClusterCut

    cut = None if options["clusters"] is None else ClusterCut(
        options["clusters"], options["batch_size"] or CLUSTERS_A_BATCH, options["between_clusters"])
    together(comm, lambda: check_writable(out) if out is not None and comm.rank == 0 else None)
    device = None if options["device"] == "cpu" else choose_device(comm, options["device"])
    opened = open_model(comm, model, shards, info, options["bits"], options["row_bits"], options["other_graph"], repeat,
                        options["device"], cut)
    run = IntegerRun.open(comm, opened.model, opened.stored, info, options["pack_features"], device)
    watch_closely(comm, options["timeout"])
    batched = None if cut is None else run_in_batches(run, cut, options["aggregation"] or "auto")
    (logits, embeddings), seconds = timed(comm, (batched or run).forward, repeat)
    scores = run.scores(logits, opened.score)
    sent = [comm.allreduce(num_bytes) // repeat for num_bytes in (run.exchange.sent_bytes, run.exchange.float_bytes)]
    batches = None if batched is None else batches_line(batched, repeat)
    memory, peak = run.memory(is_in_batches=batched is not None), peak_bytes(comm)
    if out is not None:
        write_predictions(comm, out, opened.model, info.num_nodes, run.part.inner_id, logits, embeddings)
    if comm.rank == 0:
        for remark in opened.remarks:
            click.echo(remark)
        click.echo(model_line(opened.model))
        click.echo(scores_line(opened.score, scores))
        click.echo(time_line(seconds, repeat, opened.float_seconds, comm.size))
        click.echo(f"model: {size_text(opened.num_bytes)}, weights {size_text(opened.model.weight_bits / 8)}")
        click.echo(features_line(memory))
        if device is not None:
            click.echo(device_line(batched, repeat))
        click.echo(batches or f"exchanged: {size_text(sent[0])} per pass, {size_text(sent[1])} in float32")
        click.echo(f"peak memory: {size_text(peak)}, of the largest rank")
        if out is not None:
            click.echo(f"predictions: {out}")
    if options["packages"] is not None:
        store_packages(run, options["packages"])


def store_packages(run, folder: Path) -> None:
    """Collective: write the codes that layers read as packages; rank 0 prints their size in each format."""
    from hpcgnn.cli.packages import sizes_table
    from hpcgnn.lowbit.inference.run import format_sizes
    from hpcgnn.lowbit.package_shards import write_activations
    from hpcgnn.run.launch import together
    from hpcgnn.run.output import print_fitted, terminal_width

    packed = run.packed_layers()
    layers = list(zip(packed, run.row_steps(), strict=True))
    together(run.comm, lambda: write_activations(folder, run.comm.rank, run.part.inner_id, layers))
    formats = format_sizes(run.comm, packed)
    if run.comm.rank == 0:
        print_fitted(sizes_table(formats, "codes of all layers by format"), sys.stdout, terminal_width())
        click.echo(f"packages: {folder}")


def run_in_batches(run, cut, aggregation: str = "auto"):
    """Collective: the DealtRun that predicts like an IntegerRun, in batches of a ClusterCut."""
    from hpcgnn.lowbit.inference.dealt import DealtBatches, DealtRun

    coded = run.rows.coded()
    dealt = DealtBatches.deal(run.comm, run.part, cut.clusters, cut.batch_size, keeps_all=cut.between_clusters)
    return DealtRun(dealt, run.model, coded.codes, run.in_degree, aggregation, run.device)


def batches_line(batched, repeat: int) -> str:
    """Collective: one line about the batches of all ranks and their tiles."""
    totals, counts = batched.totals(), batched.counts()
    num_sums = counts.by_tiles + counts.by_gather
    return (f"batches: {totals.num_batches} with {totals.num_entries:,} of {totals.num_arcs:,} edges, "
            f"{size_text(totals.packed_bytes)} packed; tiles took {counts.by_tiles // repeat} of {num_sums // repeat} "
            f"sums per pass and skipped {100 * counts.num_jumped / max(counts.num_places, 1):.1f} % of them, all zeros")


def device_line(batched, repeat: int) -> str:
    if batched is None:
        return "device: cuda; bits of features, edges and weights stay there"
    copies, num_bytes = (count // repeat for count in batched.copied)
    return f"device: cuda; {copies} copies per pass, {size_text(num_bytes)} of packed batches on rank 0"


def model_line(model) -> str:
    kinds = "-".join(dict.fromkeys(convolution.kind for convolution in model.convolutions))
    weights = sorted({one.scale.bit_width for convolution in model.convolutions for one in convolution.maps})
    rows = sorted({int(width) for convolution in model.convolutions for width in convolution.rows.bit_width})
    return (f"{model.dataset} {kinds} of {len(model.convolutions)} layers, {model.scheme}: weights of {_span(weights)} "
            f"bits, rows of {_span(rows)}")


def features_line(memory) -> str:
    """Bytes of rows in shards and in memory; see `hpcgnn.lowbit.inference.run.RowBytes`."""
    between = "" if memory.between is None else f", and {size_text(memory.between)} of rows between layers"
    return (f"features: {size_text(memory.stored)} as {memory.stored_form} in the shards; in memory "
            f"{size_text(memory.kept)} as {memory.form}{between}")


def _span(widths: list[int]) -> str:
    return str(widths[0]) if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"


def scores_line(score: str, scores: dict[str, float]) -> str:
    return f"{score}: " + ", ".join(f"{split} {100 * value:.2f} %" for split, value in scores.items())


def time_line(seconds: float, repeat: int, float_seconds: dict[str, float], num_ranks: int) -> str:
    against = "".join(f"; in {name} {time_text(of_floats)}, {of_floats / seconds:.2f} times as long"
                      for name, of_floats in float_seconds.items())
    return f"time: {time_text(seconds)} per pass on {num_ranks} ranks, median of {repeat}{against}"
