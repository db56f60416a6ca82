"""The comparison of runs: one row per run as text, a table for the terminal, and differences from a baseline in words.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from hpcgnn.report.formats import UNKNOWN, format_bytes, format_number, format_percent, format_ratio, format_seconds
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import ScoreKind, score_kind

# Heading and place of each difference in the table of results; a place counts the columns already inserted before it.
DIFFERENCES = {"score": ("score against", 1), "time": ("epoch against", 3), "bytes": ("bytes against", 5)}
MAX_BASELINES = 30       # that the page offers; differences of all pairs of more runs would fill it
SAME = 0.005             # relative difference of seconds or bytes below which two runs are called equal


@dataclass(frozen=True)
class Cell:
    """Text, value for sorting, and of a difference whether it is "better", "worse" or neither ("")."""

    text: str
    value: float | str | None = None
    verdict: str = ""


def differences_from(runs: list[Run], baseline: int) -> list[dict[str, Cell]]:
    base = runs[baseline]
    kind = score_kind(runs)
    return [{
        "score": _score_difference(run.summary["test_score"], base.summary["test_score"], kind),
        "time": _ratio(run.summary["median_epoch_seconds"], base.summary["median_epoch_seconds"], "faster", "slower"),
        "bytes": _ratio(run.summary["sent_bytes_per_epoch"], base.summary["sent_bytes_per_epoch"], "fewer", "more"),
    } if run is not base else {key: Cell("baseline") for key in DIFFERENCES} for run in runs]


def baselines_of(runs: list[Run]) -> list[int]:
    """Runs that the page offers as baselines: all, or, if there are many, the first ones and the best."""
    offered = list(range(min(len(runs), MAX_BASELINES)))
    best = best_run(runs)
    return offered if best is None or best in offered else [*offered, best]


def best_run(runs: list[Run]) -> int | None:
    """Number of the run with the best validation score, or None. Choosing by the test score would bias it."""
    scores = {number: run.summary["val_score"] for number, run in enumerate(runs)
              if run.summary["val_score"] is not None and run.summary["test_score"] is not None}
    return score_kind(runs).best(scores) if scores else None


def as_plain(runs: list[Run]) -> dict[str, list[dict[str, dict[str, Any]]]]:
    return {str(number): [{key: asdict(one) for key, one in differences.items()}
                          for differences in differences_from(runs, number)] for number in baselines_of(runs)}


def _score_difference(score: float | None, base: float | None, kind: ScoreKind) -> Cell:
    if score is None or base is None:
        return Cell(UNKNOWN)
    gap = score - base
    size = kind.show_gap(abs(gap))
    if float(size.split()[0]) == 0:
        return Cell("same", 0.0)
    is_better = (gap < 0) == kind.prefers_low
    return Cell(("+" if gap > 0 else "−") + size, gap, "better" if is_better else "worse")


def _ratio(value: float | None, base: float | None, less: str, more: str) -> Cell:
    if value is None or base is None or not (value and base):
        return Cell(UNKNOWN)
    if abs(value / base - 1) < SAME:
        return Cell("same", 1.0)
    if value < base:
        return Cell(f"{format_number(base / value)}× {less}", value / base, "better")
    return Cell(f"{format_number(value / base)}× {more}", value / base, "worse")


NAME_WIDTH = 14     # least letters of a name on a line, on a terminal of any width
SYNCHRONOUS = "sync.\n(%)"


def compare(runs: list[Run]) -> list[dict[str, str]]:
    """Of each run the texts of a row by heading, the name first; UNKNOWN where a run does not say."""
    first, kind = runs[0].summary["sent_bytes_per_epoch"], score_kind(runs)
    return [{
        "run": run.name + ("" if run.is_complete else " *"),
        # Headings are narrow, so that 80 characters leave room for names.
        "test\n" + kind.heading.replace(" ", "\n"): kind.show(run.summary["test_score"], run.summary["test_score_std"]),
        "epoch": format_seconds(run.summary["median_epoch_seconds"]),
        "sent per\nepoch": format_bytes(run.summary["sent_bytes_per_epoch"]),
        "of the\nfirst": format_ratio(run.summary["sent_bytes_per_epoch"], first),
        "mean\nbits": format_number(run.summary["mean_bits"]),
        SYNCHRONOUS: format_percent(run.summary["synchronous_share"]),
        "blocked": format_seconds(run.mean("blocked_seconds"))} for run in runs]


def comparison_table(runs: list[Run]) -> Table:
    """One row per run: test score, median epoch, bytes per epoch and their ratio to the first run's, payload bits per
    value, percentage of synchronous epochs, time blocked in the exchange. Columns that no run fills are left out.
    """
    rows = compare(runs)
    remark = None if all(run.is_complete for run in runs) else "* no summary.json: unfinished or running"
    table = Table(box=box.SIMPLE_HEAD, caption=remark, collapse_padding=True, pad_edge=False)
    table.add_column("run", overflow="fold", min_width=min(NAME_WIDTH, 2 + max(len(run.name) for run in runs)))
    # Without a pipeline every epoch is synchronous.
    shown = [heading for heading in list(rows[0])[1:]
             if {row[heading] for row in rows} - {UNKNOWN, *["100"] * (heading == SYNCHRONOUS)}]
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        # A Text is shown unchanged: a run called "[red]" is no markup.
        table.add_row(Text(row["run"]), *(row[heading] for heading in shown))
    return table
