"""`hpcgnn report`: run folders in; a table, an HTML file and PNG files out.

What they show is decided in hpcgnn.report.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from hpcgnn.errors import ConfigError
from hpcgnn.report.bench_folder import BenchFolder, read_bench_folders
from hpcgnn.report.run_folder import Run, read_runs
from hpcgnn.report.table import comparison_table

EXTRA_PACKAGES = ("jinja2", "matplotlib")


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN [RUN]...")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.html",
              help="HTML file to write; PNG files go beside it. [default: RUN/report.html, ./report.html for several]")
@click.option("--bench", "benches", type=click.Path(path_type=Path), multiple=True, metavar="FOLDER",
              help="Also draw what bench packages or bench dram has left here; may be given several times.")
def command(runs: tuple[Path, ...], out: Path | None, benches: tuple[Path, ...]) -> None:
    """Draw one or several run folders as HTML and PNG. Ratios are to the first RUN."""
    if out is None:
        out = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    elif out.suffix != ".html":
        raise ConfigError(f"--out is {out}; expected a file whose name ends in .html")
    folders, measured = read_runs(list(runs)), read_bench_folders(list(benches))
    Console().print(comparison_table(folders))
    click.echo(f"report: {write_page(folders, out, measured).resolve()}")


def write_page(folders: list[Run], out: Path, measured: list[BenchFolder]) -> Path:
    """Write the report and return its HTML file.

    Raises
    ------
    ConfigError      jinja2 or matplotlib is not installed; a file can't be written
    """
    try:
        from hpcgnn.report.page import write_report
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_PACKAGES:
            raise
        raise ConfigError(f"a report needs {package}, which is not installed; "
                          "run pip install 'hpcgnn[report]'") from error
    return write_report(folders, out, measured)[0]
