"""The comparison of runs: one row per run as text, a table for the terminal, and differences from a baseline in words.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
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
class Difference:
    """Text, value for sorting, and whether it is "better", "worse" or neither ("")."""

    text: str
    value: float | None = None
    verdict: str = ""


def differences_from(runs: list[Run], baseline: int) -> list[dict[str, Difference]]:
    base = runs[baseline]
    kind = score_kind(runs)
    return [{
        "score": _score_difference(run.summary["test_score"], base.summary["test_score"], kind),
        "time": _ratio(run.summary["median_epoch_seconds"], base.summary["median_epoch_seconds"], "faster", "slower"),
        "bytes": _ratio(run.summary["sent_bytes_per_epoch"], base.summary["sent_bytes_per_epoch"], "fewer", "more"),
    } if run is not base else {key: Difference("baseline") for key in DIFFERENCES} for run in runs]


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


def _score_difference(score: float | None, base: float | None, kind: ScoreKind) -> Difference:
    if score is None or base is None:
        return Difference(UNKNOWN)
    gap = score - base
    size = kind.show_gap(abs(gap))
    if float(size.split()[0]) == 0:
        return Difference("same", 0.0)
    is_better = (gap < 0) == kind.prefers_low
    return Difference(("+" if gap > 0 else "−") + size, gap, "better" if is_better else "worse")


def _ratio(value: float | None, base: float | None, less: str, more: str) -> Difference:
    if value is None or base is None or not (value and base):
        return Difference(UNKNOWN)
    if abs(value / base - 1) < SAME:
        return Difference("same", 1.0)
    if value < base:
        return Difference(f"{format_number(base / value)}× {less}", value / base, "better")
    return Difference(f"{format_number(value / base)}× {more}", value / base, "worse")


@dataclass(frozen=True)
class ComparisonRow:
    name: str
    test_score: str
    epoch: str
    sent: str
    byte_ratio: str
    mean_bits: str
    synchronous_share: str
    blocked: str
    is_complete: bool


def compare(runs: list[Run]) -> list[ComparisonRow]:
    first = runs[0].summary["sent_bytes_per_epoch"]
    kind = score_kind(runs)
    return [_row(run, first, kind) for run in runs]


def known_fields(rows: list[ComparisonRow]) -> set[str]:
    return {field.name for field in fields(ComparisonRow) for row in rows if getattr(row, field.name) != UNKNOWN}


def _row(run: Run, first_bytes: float, kind: ScoreKind) -> ComparisonRow:
    summary = run.summary
    return ComparisonRow(
        run.name,
        test_score=kind.show(summary["test_score"], summary["test_score_std"]),
        epoch=format_seconds(summary["median_epoch_seconds"]),
        sent=format_bytes(summary["sent_bytes_per_epoch"]),
        byte_ratio=format_ratio(summary["sent_bytes_per_epoch"], first_bytes),
        mean_bits=format_number(summary["mean_bits"]),
        synchronous_share=format_percent(summary["synchronous_share"]),
        blocked=format_seconds(run.mean("blocked_seconds")),
        is_complete=run.is_complete,
    )


NAME_WIDTH = 14     # least letters of a name on a line, on a terminal of any width


def comparison_table(runs: list[Run]) -> Table:
    """One row per run, without fields that no run has.

    Columns: test score, median epoch, bytes per epoch and their ratio to the first run's, payload bits per value,
    percentage of synchronous epochs, time blocked in the exchange.
    """
    rows = compare(runs)
    remark = None if all(row.is_complete for row in rows) else "* no summary.json: unfinished or running"
    table = Table(box=box.SIMPLE_HEAD, caption=remark, collapse_padding=True, pad_edge=False)
    table.add_column("run", overflow="fold",
                     min_width=min(NAME_WIDTH, 2 + max(len(row.name) for row in rows)))
    shown = _columns(rows, score_kind(runs).heading)
    for heading in shown.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        # A Text is shown unchanged: a run called "[red]" is no markup.
        table.add_row(Text(row.name + ("" if row.is_complete else " *")), *(getattr(row, field) for field in shown))
    return table


def _columns(rows: list[ComparisonRow], score: str) -> dict[str, str]:
    # Headings are narrow, so that 80 characters leave room for names.
    columns = {"test_score": "test\n" + score.replace(" ", "\n"), "epoch": "epoch", "sent": "sent per\nepoch",
               "byte_ratio": "of the\nfirst", "mean_bits": "mean\nbits",
               "synchronous_share": "sync.\n(%)", "blocked": "blocked"}
    known = known_fields(rows)
    if all(row.synchronous_share in (UNKNOWN, "100") for row in rows):
        known -= {"synchronous_share"}     # without a pipeline every epoch is synchronous
    return {field: heading for field, heading in columns.items() if field in known}
