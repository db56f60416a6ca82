"""`hpcgnn predict`: writes the predictions of a trained model for all nodes to one file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpcgnn.cli import GivenPath
from hpcgnn.cli.grouped import parse_set

TIMEOUT_SECONDS = 1800.0
MOST_LAYERS = 10_000
CORRECTIONS: dict[str, click.ParamType] = {
    "correction_layers": click.IntRange(0, MOST_LAYERS), "correction_alpha": click.FloatRange(0, 1),
    "correction_scale": click.FloatRange(min=0), "smoothing_layers": click.IntRange(0, MOST_LAYERS),
    "smoothing_alpha": click.FloatRange(0, 1)}
CHOICES: dict[str, click.ParamType] = {"nodes": GivenPath(exists=True, dir_okay=False),
                                       "relation": click.STRING}
FIELDS = {"correction_scale": "scale"}      # of `CorrectAndSmooth`, if the name is another one


@click.command()
@click.argument("run_folder", type=GivenPath())
@click.argument("shards", type=GivenPath())
@click.option("--out", type=GivenPath(), metavar="FILE",
              help="File to write; its ending selects the format: .parquet, .h5, .npz or .csv. Without it none is "
                   "written.")
@click.option("--embeddings", is_flag=True, help="Also write the embeddings: the rows that the last layer reads.")
@click.option("--correct-and-smooth", is_flag=True,
              help="Move the predictions by the training labels along the edges (Huang et al., ICLR 2021); needs "
                   "training labels in SHARDS.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE",
              help="nodes=FILE: predictions of the nodes in FILE only, one id per line, in this order. relation=NAME: "
                   "of the links that --top writes, if edges have relations. Others change "
                   "--correct-and-smooth: correction_layers or smoothing_layers (50), correction_alpha (1.0), "
                   "smoothing_alpha (0.8), or correction_scale, one factor for all errors that have spread.")
@click.option("--top", type=click.IntRange(1, 10_000), metavar="K",
              help="For a run of links: write each node's K best links that the graph lacks, to a .csv or .parquet "
                   "--out.")
@click.option("--pairs", type=GivenPath(exists=True, dir_okay=False), metavar="FILE",
              help="For a run of links: write the scores of the pairs in FILE, two columns of ids; with relations "
                   "three: source, relation, target.")
@click.option("--other-graph", is_flag=True, help="Predict for a graph that the run was not trained on.")
def command(run_folder: Path, shards: Path, out: Path | None, embeddings: bool, other_graph: bool,
            correct_and_smooth: bool, assignments: tuple[str, ...], top: int | None, pairs: Path | None) -> None:
    """Predict for every node of the graph in SHARDS with the best model of RUN_FOLDER, one MPI rank per part.

    One forward pass in floats, without dropout: class and probability of each node, under its id in the source.
    """
    given = {FIELDS.get(name, name): value
             for name, value in parse_set(assignments, {**CORRECTIONS, **CHOICES}).items()}
    nodes, relation = (given.pop(name, None) for name in CHOICES)
    if given and not correct_and_smooth:
        first = next(one for one in assignments if one.partition("=")[0] not in CHOICES)
        raise click.UsageError(f"--set {first} has no effect without --correct-and-smooth; add it, or leave this out")
    if (top or pairs) and (out is None or embeddings or correct_and_smooth or nodes or (top and pairs)):
        raise click.UsageError("--top or --pairs, one of them, writes a table of links to --out, and nothing else")
    if relation is not None and not top:
        raise click.UsageError("--set relation has no effect without --top; add it, or leave this out")
    # MPI is started, and the threads shared out, before torch is imported.
    from hpcgnn.run.launch import run_parallel

    if top or pairs:
        run_parallel(lambda comm: predict_links(comm, run_folder, shards, out, other_graph, top, pairs, relation))
        return
    run_parallel(lambda comm: predict_in_parallel(comm, run_folder, shards, out, embeddings, other_graph,
                                                  given if correct_and_smooth else None, nodes))


def predict_in_parallel(comm, run_folder: Path, shards: Path, out: Path | None, embeddings: bool,
                        other_graph: bool, corrected: dict[str, Any] | None = None, nodes: Path | None = None) -> None:
    """Collective: open the run, predict, write the file on rank 0, and print the scores.

    `corrected` are settings of `CorrectAndSmooth`; None leaves the predictions as they are. `nodes` is a file of ids,
    one per line; None writes all nodes.
    """
    from hpcgnn.run.launch import together, watch
    from hpcgnn.training.alike import check_same
    from hpcgnn.training.session import read_shared_info

    watch(comm, TIMEOUT_SECONDS)
    info = read_shared_info(comm, shards)
    check_same(comm, {"out": out, "embeddings": embeddings, "other_graph": other_graph, "corrected": corrected,
                      "nodes": nodes})
    # These import torch, which takes seconds, so checks without torch come before.
    from hpcgnn.data.node_files import read_ids
    from hpcgnn.results.answer_file import check_answer_file, write_answers
    from hpcgnn.results.float_run import FloatRun

    together(comm, lambda: check_answer_file(out) if out is not None and comm.rank == 0 else None)
    ids = comm.bcast(together(comm, lambda: None if nodes is None or comm.rank else read_ids(nodes)))
    run = FloatRun.open(comm, run_folder, shards, info, other_graph)
    answers = run.answer(embeddings)
    if corrected is not None:
        from hpcgnn.results.correct_and_smooth import CorrectAndSmooth

        answers = CorrectAndSmooth(**corrected).answers(run.session, answers)
    scores = run.scores(answers)
    if out is not None:
        write_answers(comm, out, info.name, answers if ids is None else of_nodes(comm, answers, ids))
    if comm.rank == 0:
        for line in run.remarks:
            click.echo(line)
        click.echo(f"{info.name}: {info.num_nodes:,} nodes, predictions of {run_folder}")
        if corrected is not None:
            click.echo("predictions are corrected and smoothed by the training labels, so the train score counts them")
        click.echo(scores_line(run.session.score, scores))
        if out is not None:
            click.echo(f"predictions: {out}")


def of_nodes(comm, answers, ids):
    """Collective: this rank's share of the answers for some nodes, numbered in the order of `ids`.

    Parameters
    ----------
    answers : Answers
    ids : (num_ids,) int64 or texts      ids in the source, each once

    Raises
    ------
    CollectiveError                      an id that no node has
    """
    import numpy as np

    from hpcgnn.data.columns import as_ids
    from hpcgnn.data.ids import places_of
    from hpcgnn.errors import CollectiveError

    place = places_of(ids, as_ids(answers.name, "ids of nodes"))
    is_lost = comm.allreduce((place >= 0).astype(np.int64)) == 0
    if is_lost.any():
        lost = ids[int(np.argmax(is_lost)):][:1].tolist()[0]
        raise CollectiveError(f"{int(is_lost.sum()):,} ids are of no node, such as {lost!r}; expected ids of the "
                              "graph's source")
    return replace(answers[place[place >= 0]], node_id=np.flatnonzero(place >= 0), num_nodes=len(ids))


def predict_links(comm, run_folder: Path, shards: Path, out: Path, other_graph: bool, top: int | None,
                  pairs: Path | None, relation: str | None) -> None:
    """Collective: open a run of links and write the best links of all nodes, or the scores of pairs."""
    from hpcgnn.run.launch import together, watch
    from hpcgnn.training.alike import check_same
    from hpcgnn.training.session import read_shared_info

    watch(comm, TIMEOUT_SECONDS)
    info = read_shared_info(comm, shards)
    check_same(comm, {"out": out, "other_graph": other_graph, "top": top, "pairs": pairs,
                      "relation": relation})
    from hpcgnn.links.answers import check_table_file, write_best_links, write_pairs
    from hpcgnn.results.float_run import FloatRun

    together(comm, lambda: check_table_file(out) if comm.rank == 0 else None)
    run = FloatRun.open(comm, run_folder, shards, info, other_graph)
    together(comm, lambda: check_is_of_links(run_folder, run.session.config.task))
    answers = run.answer()
    if top:
        write_best_links(run, answers, top, out, relation)
    else:
        write_pairs(run, answers, pairs, out)
    if comm.rank == 0:
        for line in run.remarks:
            click.echo(line)
        click.echo(f"{info.name}: links of {run_folder}: {out}")


def check_is_of_links(run_folder: Path, task: str) -> None:
    """Raise ConfigError for a run that predicts labels of nodes."""
    if task != "links":
        from hpcgnn.errors import ConfigError

        raise ConfigError(f"{run_folder} holds a model of nodes, and --top and --pairs are for links; train one with "
                          "--task links, or leave them out")


def scores_line(score, scores: dict[str, float]) -> str:
    return f"{score.name}: " + ", ".join(
        f"{split} {score.show(value)}{' %' if score.is_share and not math.isnan(value) else ''}"
        for split, value in scores.items())
