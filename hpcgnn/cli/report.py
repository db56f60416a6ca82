"""`hpcgnn report`: compares run folders in a table and one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from hpcgnn.cli import GivenPath
from hpcgnn.errors import ConfigError


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=GivenPath(), metavar="RUN [RUN]...")
@click.option("--out", type=GivenPath(dir_okay=False), metavar="FILE.html|FILE.csv",
              help="HTML file to write, or a CSV table of all epochs. [default: RUN/report.html, ./report.html for "
              "several]")
def command(runs: tuple[Path, ...], out: Path | None) -> None:
    """Compare run folders in one HTML file that needs no network. The first RUN is the baseline.

    The page has curves to zoom and smooth, tables that sort, and what differs between the runs; any browser shows it.
    """
    if out is None:
        out = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    elif out.suffix not in (".html", ".csv"):
        raise ConfigError(f"--out is {out}; expected a file name that ends in .html or .csv")
    # These import NumPy and rich, which --help does not need.
    from rich.console import Console

    from hpcgnn.report.comparison import comparison_table
    from hpcgnn.report.page import write_epochs, write_report
    from hpcgnn.report.run_folder import read_runs

    folders = read_runs(list(runs))
    Console().print(comparison_table(folders))
    if out.suffix == ".csv":
        click.echo(f"epochs: {write_epochs(folders, out).resolve()}")
        return
    click.echo(f"report: {write_report(folders, out).resolve()}")
