"""The report of runs as one self-contained HTML file: figures and tables as HTML, charts as data for its scripts.

The layout is in web/report.html. The same folders give the same file, byte for byte.
"""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import hpcgnn
from hpcgnn.errors import ConfigError
from hpcgnn.report.charts import Chart, charts_of, remarks_of
from hpcgnn.report.comparison import as_plain, baselines_of, best_run, differences_from
from hpcgnn.report.formats import format_bytes, format_number, format_seconds
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import ScoreKind, mean_over_seeds, positions, score_kind, total_bytes
from hpcgnn.report.tables import environment_table, results_table, settings_table, state_of, training_seconds

WEB = Path(__file__).parent / "web"
SCRIPTS = ("format.js", "svg.js", "lines.js", "blocks.js", "panels.js", "save.js", "tables.js", "page.js")
NUM_COLORS, NUM_DASHES = 8, 5     # as in style.css and svg.js
DISTURBING_CORES = 0.25      # of other programs, from which a remark says so


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


@dataclass(frozen=True)
class Headline:
    """A large figure of the first screen, with a sentence next to it."""

    title: str
    text: str
    run: int | None
    remark: str


def headlines(runs: list[Run]) -> list[Headline]:
    return _of_one(runs[0]) if len(runs) == 1 else _of_several(runs)


def _of_one(run: Run) -> list[Headline]:
    summary, kind = run.summary, score_kind([run])
    found = []
    if summary["test_score"] is not None:
        epochs = [str(result["best_epoch"]) for result in summary.get("results", []) if "best_epoch" in result]
        where = f"best validation at epoch {', '.join(epochs)}" if epochs else "at the best validation score"
        found.append(Headline(f"test {kind.title}", _score_text(run, kind), None, where))
    if summary["median_epoch_seconds"] is not None:
        found.append(Headline("an epoch", format_seconds(summary["median_epoch_seconds"]), None,
                              f"median of {len(run.records):,}; {format_seconds(training_seconds(run))} of training"
                              + (" a seed" if len(run.seeds) > 1 else "") + _disturbed([run])))
    if summary["sent_bytes_per_epoch"]:
        total = float(np.nansum(mean_over_seeds(total_bytes(run))[0]))
        bits = f"; {format_number(summary['mean_bits'])} bits per value of messages" if summary["mean_bits"] else ""
        messages = summary["sent_bytes_messages_per_epoch"]
        if messages < summary["sent_bytes_per_epoch"]:
            bits = f"; {format_bytes(messages)} of an epoch are messages{bits}"
        found.append(Headline("sent per epoch", format_bytes(summary["sent_bytes_per_epoch"]), None,
                              f"{format_bytes(total)} in the whole training{bits}"))
    if summary["peak_rss_bytes"]:
        found.append(Headline("peak memory", format_bytes(summary["peak_rss_bytes"]), None,
                              "of the rank that holds most" if summary["ranks"] != 1 else "of the only rank"))
    return found


def _of_several(runs: list[Run]) -> list[Headline]:
    kind, best, found = score_kind(runs), best_run(runs), []
    if best is not None:
        found.append(Headline(f"test {kind.title}, best by validation", _score_text(runs[best], kind), best,
                              _against(runs, best, "score")))
    for key, field, title, write in (("time", "median_epoch_seconds", "shortest epoch", format_seconds),
                                     ("bytes", "sent_bytes_per_epoch", "fewest bytes per epoch", format_bytes)):
        # A run on one rank sends nothing; it does not compete.
        known = [(run.summary[field], number) for number, run in enumerate(runs) if run.summary[field]]
        if known:
            value, number = min(known)
            remark = _against(runs, number, key) + (_disturbed([runs[number], runs[0]]) if key == "time" else "")
            found.append(Headline(title, write(value), number, remark))
    return found


def _disturbed(runs: list[Run]) -> str:
    """A clause for each of the runs in which other programs took so many cores that its seconds say little."""
    known = {run.name: run.summary.get("other_cores") or 0.0 for run in runs}
    return "".join(f"; other programs used {format_number(cores)} cores during {name}"
                   for name, cores in known.items() if cores >= DISTURBING_CORES)


def _against(runs: list[Run], number: int, key: str) -> str:
    if number == 0:
        return "the first run"
    difference = differences_from(runs, 0)[number][key]
    if difference.value is None:
        return f"{runs[0].name} has none to compare with"
    word = "as" if difference.text == "same" else "against" if key == "score" else "than"
    return f"{difference.text} {word} {runs[0].name}"


def _score_text(run: Run, kind: ScoreKind) -> str:
    return kind.show(run.summary["test_score"], run.summary["test_score_std"], with_unit=True)
