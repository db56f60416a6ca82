"""`hpcgnn report`: run folders in; a table and one HTML file out.

What they show is decided in hpcgnn.report.
"""

from __future__ import annotations

from pathlib import Path

import click

from hpcgnn.errors import ConfigError


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN [RUN]...")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.html|FILE.csv",
              help="HTML file to write, or a CSV table of all epochs. [default: RUN/report.html, ./report.html for "
              "several]")
@click.option("--bench", "benches", type=click.Path(path_type=Path), multiple=True, metavar="FOLDER",
              help="Also draw what bench packages or bench dram has left here; may be given several times.")
def command(runs: tuple[Path, ...], out: Path | None, benches: tuple[Path, ...]) -> None:
    """Compare run folders in one HTML file that needs no network. The first RUN is the baseline.

    The page has curves to zoom and smooth, tables that sort, and what differs between the runs; any browser shows it.
    """
    if out is None:
        out = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    elif out.suffix not in (".html", ".csv"):
        raise ConfigError(f"--out is {out}; expected a file whose name ends in .html or .csv")
    elif out.suffix == ".csv" and benches:
        raise ConfigError("--bench is drawn, and a CSV table holds the epochs of runs; name a file that ends in .html")
    # These import NumPy and rich, which help need not wait for.
    from rich.console import Console

    from hpcgnn.report.bench_folder import read_bench_folders
    from hpcgnn.report.page import write_epochs, write_report
    from hpcgnn.report.run_folder import read_runs
    from hpcgnn.report.table import comparison_table

    folders, measured = read_runs(list(runs)), read_bench_folders(list(benches))
    Console().print(comparison_table(folders))
    if out.suffix == ".csv":
        click.echo(f"epochs: {write_epochs(folders, out).resolve()}")
        return
    click.echo(f"report: {write_report(folders, out, measured).resolve()}")
