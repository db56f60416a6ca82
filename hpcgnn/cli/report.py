"""`hpcgnn report`: compares run folders in a table and one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from hpcgnn.cli import GivenPath
from hpcgnn.errors import ConfigError


@click.command("report")
@click.argument("paths", nargs=-1, required=True, type=GivenPath(), metavar="RUN [RUN]...")
@click.option("--out", type=GivenPath(dir_okay=False), metavar="FILE.html|FILE.csv",
              help="HTML file to write, or a CSV table of all epochs. [default: RUN/report.html, ./report.html for "
              "several]")
def command(paths: tuple[Path, ...], out: Path | None) -> None:
    """Compare run folders in one HTML file that needs no network. The first RUN is the baseline.

    The page has curves to zoom and smooth, tables that sort, and what differs between the runs; any browser shows it.
    Folders of jobs/measurements/packages.py or dram.py may follow the runs; their results are drawn too.
    """
    from hpcgnn.report.bench_charts import is_of_benchmark, read_bench_folders

    benches = [path for path in paths if is_of_benchmark(path)]
    runs = [path for path in paths if path not in benches]
    if not runs:
        raise ConfigError(f"{', '.join(map(str, benches))} holds results of a benchmark and no run; name a run "
                          "folder before it")
    if out is None:
        out = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    elif out.suffix not in (".html", ".csv"):
        raise ConfigError(f"--out is {out}; expected a file name that ends in .html or .csv")
    elif out.suffix == ".csv" and benches:
        raise ConfigError(f"{benches[0]} holds a benchmark, which can only be drawn, and a CSV table holds epochs of "
                          "runs; name a file that ends in .html")
    # These import NumPy and rich, which --help does not need.
    from rich.console import Console

    from hpcgnn.report.comparison import comparison_table
    from hpcgnn.report.page import write_epochs, write_report
    from hpcgnn.report.run_folder import read_runs

    folders, measured = read_runs(runs), read_bench_folders(benches)
    Console().print(comparison_table(folders))
    if out.suffix == ".csv":
        click.echo(f"epochs: {write_epochs(folders, out).resolve()}")
        return
    click.echo(f"report: {write_report(folders, out, measured).resolve()}")
