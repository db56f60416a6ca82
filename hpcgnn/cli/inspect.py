"""`hpcgnn inspect`: shows the contents of a folder of shards as text, tables by part and by pair, and a picture."""

from __future__ import annotations

from pathlib import Path

import click

from hpcgnn.cli import GivenPath

DEFAULT_DIM = 256   # columns of a row if the graph has no features


@click.command()
@click.argument("shards", type=GivenPath())
@click.argument("work", required=False, metavar="[LAYERS|RUN]")
@click.option("--plot", type=GivenPath(dir_okay=False),
              help="Draw the parts to this file; .png, .pdf or .svg.")
@click.option("--packages", is_flag=True,
              help="Read features that are stored as packages; print their bits and what other formats would take.")
@click.option("--verify", is_flag=True,
              help="Check every part: its checksum, its content, and that parts fit each other.")
def command(shards: Path, plot: Path | None, packages: bool, verify: bool, work: str | None) -> None:
    """Show what the folder SHARDS holds, part by part, and what the parts send each other.

    With a number of LAYERS it reads all parts and also shows what an epoch of such a model computes in each part. With
    a RUN folder it shows this for the run's model, next to the seconds of the run's ranks.
    """
    # These import NumPy and SciPy, which help need not wait for.
    from hpcgnn.cli.graph_text import level_bins_of, plot_parts, print_info, print_messages, print_table
    from hpcgnn.cli.progress import shown_progress
    from hpcgnn.methods.sylvie import Sylvie
    from hpcgnn.shards.reader import read_graph_info, verify_shards

    if verify:
        with shown_progress() as progress:
            info = verify_shards(shards, progress)
    else:
        info = read_graph_info(shards)
    print_info(info)
    print_messages(info, level_bins_of(Sylvie().thresholds()), info.num_features or DEFAULT_DIM)
    if packages:
        from hpcgnn.cli.packages import print_packages

        print_packages(shards, info, print_table)
    if work is not None:
        from hpcgnn.cli.graph_text import print_work

        print_work(shards, work)
    if verify:
        click.echo(f"all {info.num_parts + 1} files are whole and of one run")
    if plot is not None:
        plot_parts(info, plot)
        click.echo(f"picture: {plot}")
