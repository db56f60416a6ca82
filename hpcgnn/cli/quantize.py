"""`hpcgnn quantize`: writes the model of a run folder as integers to one file."""

from __future__ import annotations

from pathlib import Path

import click

from hpcgnn.cli import GivenPath
from hpcgnn.cli.infer import Widths
from hpcgnn.run.output import size_text


@click.command()
@click.argument("run_folder", type=GivenPath())
@click.argument("shards", type=GivenPath())
@click.option("--bits", "widths", type=Widths(), metavar="BITS", help="Bits of weights and rows; WEIGHTS,ROWS gives "
              "the rows that a layer reads bits of their own. [default: 8]")
@click.option("--other-graph", is_flag=True, help="Calibrate on the shards of another graph than the run was trained "
                                                  "on.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True,
              help="Device that calibrates and computes the scores.")
@click.option("--out", type=GivenPath(), help="File to write. [default: RUN_FOLDER/model.h5]")
def command(run_folder: Path, shards: Path, widths: tuple[int, int] | None, other_graph: bool, device: str,
            out: Path | None) -> None:
    """Quantize the best model of RUN_FOLDER to integers, and write it to a file for hpcgnn infer.

    A run of hpcgnn train --quantize is exported as it is. Any other run is calibrated on the graph in SHARDS, one MPI
    rank per part: each step minimizes the squared error. A run that was trained in clusters is calibrated, and scored
    before and after, on the edges that it was trained on.
    """
    # MPI is started, and the threads shared out, before torch is imported.
    from hpcgnn.run.launch import run_parallel

    bits, row_bits = widths or (None, None)
    run_parallel(lambda comm: quantize_in_parallel(comm, run_folder, shards, bits, row_bits, other_graph, device,
                                                   out or run_folder / "model.h5"))


def quantize_in_parallel(comm, run_folder: Path, shards: Path, bits: int | None, row_bits: int | None,
                         other_graph: bool, device: str, out: Path) -> None:
    """Collective: export or calibrate, write the file on rank 0, and print scores and bytes."""
    from hpcgnn.cli.infer import run_in_batches
    from hpcgnn.run.launch import choose_device, together
    from hpcgnn.training.session import read_shared_info

    info = read_shared_info(comm, shards)
    # These import torch, which takes seconds, so checks without torch come before.
    from hpcgnn.lowbit.inference.model_file import write_model
    from hpcgnn.lowbit.inference.model_source import StoredPart, integer_config, integer_model
    from hpcgnn.lowbit.inference.run import IntegerRun
    from hpcgnn.results.answer_file import check_writable
    from hpcgnn.training.session import check_task
    from hpcgnn.training.trained_run import BestModel

    together(comm, lambda: check_writable(out) if comm.rank == 0 else None)
    together(comm, lambda: check_task(info.name, info.task))
    place = None if device == "cpu" else choose_device(comm, device)
    best = BestModel.find(comm, run_folder, shards, info, integer_config, other_graph, device)
    stored = StoredPart.read(comm, shards, info)
    trained = best.open(comm, part=together(comm, stored.with_floats))
    stored = stored.shared_with(trained.session.graph)
    model = integer_model(trained, bits, row_bits)
    together(comm, lambda: write_model(out, model, info.fingerprint, trained.cut) if comm.rank == 0 else None)
    before, score = trained.evaluate(), trained.session.score.name
    run = IntegerRun.open(comm, model, stored, info, device=place)
    answering = run if trained.cut is None else run_in_batches(run, trained.cut)
    after = run.scores(answering.forward()[0], score)
    memory = run.memory(is_in_batches=trained.cut is not None)
    if comm.rank == 0:
        if trained.remark is not None:
            click.echo(trained.remark)
        if trained.cut is not None:
            click.echo(f"trained in {trained.cut.clusters} clusters, and scored on their edges: {trained.cut.flags}")
        print_result(model, score, before, after, memory, out)


def print_result(model, score: str, before, after: dict[str, float], memory, out: Path) -> None:
    from hpcgnn.cli.infer import features_line, model_line, scores_line
    from hpcgnn.lowbit.inference.model_file import payload_bytes

    float_bytes = 4 * sum(one.codes.size for convolution in model.convolutions for one in convolution.maps)
    click.echo(model_line(model))
    scores = {split: getattr(before, f"{split}_score") for split in after}
    click.echo(f"before {scores_line(score, scores)}")
    click.echo(f"after  {scores_line(score, after)}")
    click.echo(f"model: {size_text(out.stat().st_size)} in its file: {size_text(payload_bytes(model))} are "
               f"numbers and {size_text(-(-model.weight_bits // 8))} weights, {size_text(float_bytes)} in float32")
    click.echo(features_line(memory))
    click.echo(f"model file: {out}")
