"""The comparison of several runs as text: one row a run, the first being what the others are measured against.

How the terminal's table looks is decided in `hpcgnn.report.table`; the page has cells of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from hpcgnn.report.formats import (
    UNKNOWN,
    format_bytes,
    format_number,
    format_percent,
    format_ratio,
    format_score,
    is_percent,
    score_title,
)
from hpcgnn.report.run_folder import Run


@dataclass(frozen=True)
class ComparisonRow:
    """One run, every field formatted for reading, UNKNOWN where the run does not tell it."""

    name: str
    dataset: str
    model: str
    method: str
    ranks: str
    test_score: str
    epoch_seconds: str
    sent_megabytes: str
    payload_megabytes: str
    parameter_megabytes: str
    byte_ratio: str
    mean_bits: str
    synchronous_share: str
    blocked_seconds: str
    peak_memory: str
    is_complete: bool


def compare(runs: list[Run]) -> list[ComparisonRow]:
    """Rows of the comparison, in the order of the runs."""
    first = runs[0].summary["sent_bytes_per_epoch"]
    return [_row(run, first) for run in runs]


def known_fields(rows: list[ComparisonRow]) -> set[str]:
    """Names of the fields that at least one run tells; a column of any other would be empty."""
    return {field.name for field in fields(ComparisonRow) for row in rows if getattr(row, field.name) != UNKNOWN}


def _row(run: Run, first_bytes: float) -> ComparisonRow:
    summary = run.summary
    sent_bytes = summary["sent_bytes_per_epoch"]
    return ComparisonRow(
        run.name,
        *(_text(summary[key]) for key in ("dataset", "model", "method", "ranks")),
        test_score=format_score(summary["test_score"], summary["test_score_std"], summary["score_name"]),
        epoch_seconds=format_number(summary["median_epoch_seconds"]),
        sent_megabytes=format_number(sent_bytes / 1e6),
        payload_megabytes=format_number(summary["sent_bytes_payload_per_epoch"] / 1e6),
        parameter_megabytes=format_number(summary["sent_bytes_parameters_per_epoch"] / 1e6),
        byte_ratio=format_ratio(sent_bytes, first_bytes),
        mean_bits=format_number(summary["mean_bits"]),
        synchronous_share=format_percent(summary["synchronous_share"]),
        blocked_seconds=format_number(run.mean("blocked_seconds")),
        peak_memory=format_bytes(summary["peak_rss_bytes"]),
        is_complete=run.is_complete,
    )


def score_name(runs: list[Run]) -> str:
    """Name of the score that all complete runs share, else "score"."""
    names = {run.summary["score_name"] for run in runs if run.is_complete}
    return names.pop() if len(names) == 1 else "score"


def score_label(runs: list[Run]) -> str:
    """Name of the shared score for a heading, with the unit where it is a percentage."""
    name = score_name(runs)
    return score_title(name) + (" (%)" if is_percent(name) else "")


def _text(value: object) -> str:
    return UNKNOWN if value is None else str(value)
