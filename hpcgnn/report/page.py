"""The report of runs as one self-contained HTML file, with its figures as PNG files beside it.

The layout is in report.html; what is drawn and computed lives in the neighboring modules.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

import hpcgnn
from hpcgnn.errors import ConfigError
from hpcgnn.report.comparison import compare, format_bytes, score_label
from hpcgnn.report.figures import DARK, LIGHT, RUN_COLORS, draw_figures
from hpcgnn.report.run_folder import Run

DOTS_PER_INCH = 160
CAPTIONS = {
    "loss": ("Loss", "Mean training loss of each epoch; the time is that of training, without evaluations."),
    "score": ("Score", "Full lines are the test score, dotted lines the validation score."),
    "bytes": ("Messages", "Bytes handed to MPI in an average epoch, summed over ranks. Parameters are the "
                          "zero points and steps that travel with quantized rows."),
    "time": ("Epoch time", "Median epoch by what the ranks did in it."),
}


@dataclass(frozen=True)
class FigurePair:
    """One figure as the template shows it: data URIs for a light and a dark page."""

    title: str
    caption: str
    light: str
    dark: str


def write_report(runs: list[Run], path: Path) -> list[Path]:
    """Write the HTML file at `path` and its figures as PATH-<figure>.png; return all of them, the HTML first.

    Raises
    ------
    ConfigError      a file can't be written
    """
    light = {name: _png(figure) for name, figure in draw_figures(runs, LIGHT).items()}
    dark = {name: _png(figure) for name, figure in draw_figures(runs, DARK).items()}
    pairs = [FigurePair(*_caption(name, runs), _data_uri(light[name]), _data_uri(dark[name])) for name in light]
    files = {path: _render(runs, pairs).encode()}
    files |= {path.with_name(f"{path.stem}-{name}.png"): png for name, png in light.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            file.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"report {path} can't be written: {error.strerror}; choose another with --out") from error
    return list(files)


def _render(runs: list[Run], figures: list[FigurePair]) -> str:
    # Run names and settings are the user's: autoescape keeps them text.
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True,
                              undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["bytes"] = format_bytes
    return environment.get_template("report.html").render(
        runs=runs, rows=compare(runs), score=score_label(runs), figures=figures, colors=RUN_COLORS,
        version=hpcgnn.__version__, date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))


def _caption(name: str, runs: list[Run]) -> tuple[str, str]:
    title, caption = CAPTIONS[name]
    if name in ("loss", "score") and any(len(run.seeds) > 1 for run in runs):
        caption += " Lines are means over seeds, bands one standard deviation."
    return title, caption


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
