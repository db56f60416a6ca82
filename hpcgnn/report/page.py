"""The report of runs as one self-contained HTML file, with its figures as PNG files beside it.

The layout is in report.html; what is drawn and computed lives in the neighboring modules.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

import hpcgnn
from hpcgnn.errors import ConfigError
from hpcgnn.report.bench_figures import BoundChart, bench_charts
from hpcgnn.report.bench_folder import BenchFolder
from hpcgnn.report.canvas import DARK, LIGHT, RUN_COLORS
from hpcgnn.report.comparison import (
    OPTIONAL_COLUMNS,
    compare,
    format_bytes,
    format_histogram,
    format_number,
    known_fields,
    score_label,
)
from hpcgnn.report.figures import caption_of, drawable
from hpcgnn.report.run_folder import Run

DOTS_PER_INCH = 160


@dataclass(frozen=True)
class FigurePair:
    """One figure as the template shows it: data URIs for a light and a dark page."""

    title: str
    caption: str
    light: str
    dark: str


def write_report(runs: list[Run], path: Path, benches: list[BenchFolder] | None = None) -> list[Path]:
    """Write the HTML file at `path` and its figures as PATH-<figure>.png; return all of them, the HTML first.

    Figures of benchmark folders follow those of the runs.

    Raises
    ------
    ConfigError      a file can't be written
    """
    pairs, pictures = [], {}
    charts = [BoundChart(chart.name, chart.title, caption_of(chart, shown), partial(chart.draw, shown))
              for chart, shown in drawable(runs)] + bench_charts(benches or [])
    for chart in charts:
        light, dark = (_png(chart.draw(theme)) for theme in (LIGHT, DARK))
        pairs.append(FigurePair(chart.title, chart.caption, _data_uri(light), _data_uri(dark)))
        pictures[path.with_name(f"{path.stem}-{chart.name}.png")] = light
    files = {path: _render(runs, pairs).encode(), **pictures}
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
    environment.filters.update(bytes=format_bytes, number=format_number, widths=format_histogram)
    rows = compare(runs)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template("report.html").render(
        runs=runs, rows=rows, known=known_fields(rows), optional_columns=OPTIONAL_COLUMNS, score=score_label(runs),
        figures=figures, colors=RUN_COLORS, version=hpcgnn.__version__, date=date)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
