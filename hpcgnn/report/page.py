"""The report of runs as one self-contained HTML file: tables as HTML, charts as data that its scripts draw.

The layout is in web/report.html. The same folders give the same file, byte for byte.
"""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import hpcgnn
from hpcgnn.errors import ConfigError
from hpcgnn.report.charts import Chart, charts_of, remarks_of
from hpcgnn.report.comparison import as_plain, baselines_of
from hpcgnn.report.headlines import headlines
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import positions
from hpcgnn.report.tables import environment_table, results_table, settings_table, state_of

WEB = Path(__file__).parent / "web"
SCRIPTS = ("format.js", "svg.js", "lines.js", "blocks.js", "panels.js", "save.js", "tables.js", "page.js")
NUM_COLORS, NUM_DASHES = 8, 5     # as in style.css and svg.js


def write_report(runs: list[Run], path: Path) -> Path:
    """Write the HTML file and return its path. Raises ConfigError: the file can't be written."""
    page = render(runs, charts_of(runs))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"report {path} can't be written: {error.strerror}; choose another with --out") from error
    return path


def write_epochs(runs: list[Run], path: Path) -> Path:
    """Write one CSV row per epoch of each run, with all columns that some run has; return the path.

    Lists and tables of metrics.jsonl, such as bytes by pair of ranks, are left out; unknown values are empty. Raises
    ConfigError: the file can't be written.
    """
    rows = epoch_rows(runs)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), restval="",
                                   lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
    except OSError as error:
        raise ConfigError(f"table {path} can't be written: {error.strerror}; choose another with --out") from error
    return path


def epoch_rows(runs: list[Run]) -> list[dict[str, Any]]:
    return [{"run": run.name, **{name: value for name, value in record.items() if not isinstance(value, (dict, list))}}
            for run in runs for record in run.records]


def render(runs: list[Run], charts: list[Chart]) -> str:
    # Run names and settings are the user's: autoescape keeps them text.
    environment = Environment(loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("report.html").render(
        runs=runs, identities=[_identity(number, run) for number, run in enumerate(runs)], charts=charts,
        headlines=headlines(runs), remarks=remarks_of(runs), halves=_side_by_side(charts), baselines=baselines_of(runs),
        results=results_table(runs), settings=settings_table(runs), environment=environment_table(runs),
        data=_script_data(runs, charts), style=_asset("style.css"),
        scripts=Markup("\n").join(map(_asset, SCRIPTS)), version=hpcgnn.__version__)


def _side_by_side(charts: list[Chart]) -> set[str]:
    # Consecutive bar charts stand in pairs; if their number is odd, the last one stands alone.
    paired: set[str] = set()
    for is_bars, group in itertools.groupby(charts, key=lambda chart: chart.kind == "bars"):
        names = [chart.name for chart in group]
        paired |= set(names[:len(names) // 2 * 2]) if is_bars else set()
    return paired


def _identity(number: int, run: Run) -> dict[str, Any]:
    return {"name": run.name, "color": number % NUM_COLORS, "dash": number // NUM_COLORS % NUM_DASHES,
            "state": state_of(run), "is_complete": run.is_complete}


def _script_data(runs: list[Run], charts: list[Chart]) -> Markup:
    # "</" inside the JSON, for example in a run's name, would end its element.
    data = {"runs": [{**_identity(number, run), "x": positions(run)} for number, run in enumerate(runs)],
            "charts": {chart.name: asdict(chart) for chart in charts},
            "differences": as_plain(runs) if len(runs) > 1 else {}}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _asset(name: str) -> Markup:
    return Markup((WEB / name).read_text(encoding="utf-8"))
