"""`hpcgnn export`: writes the best weights of a run folder as one file for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from hpcgnn.cli import GivenPath


@click.command()
@click.argument("run_folder", type=GivenPath())
@click.option("--out", type=GivenPath(), metavar="FILE",
              help="File to write. [default: RUN_FOLDER/model.safetensors]")
@click.option("--format", "form", type=click.Choice(("hpcgnn", "pyg")), default="hpcgnn", show_default=True,
              help="Names of the weights: the run's own, which hpcgnn.load_model reads, or the names in the model of "
              "PyTorch Geometric that computes the same.")
def command(run_folder: Path, out: Path | None, form: str) -> None:
    """Write the best weights of RUN_FOLDER as a safetensors file, with the model's arguments and origin.

    `hpcgnn.load_model(FILE)` gives a module for plain PyTorch: forward(x, edge_index) on one process, without MPI.
    """
    from hpcgnn.results.answer_file import check_writable
    from hpcgnn.results.export import exported, write_exported

    out = out or run_folder / "model.safetensors"
    check_writable(out)
    record, weights = exported(run_folder, as_pyg=form == "pyg")
    write_exported(out, record, weights)
    arguments = ".." if record.arguments is None else ", ".join(
        f"{name}={value!r}" for name, value in record.arguments.items())
    click.echo(f"model: {record.model}({arguments})")
    click.echo(f"weights: {sum(tensor.numel() for tensor in weights.values()):,} numbers in {len(weights)} tensors, of "
               f"epoch {record.epoch}, seed {record.seed}")
    if not record.task:
        click.echo("its shards are not where they were, so the file names neither task nor classes")
    click.echo(f"written: {out}")
