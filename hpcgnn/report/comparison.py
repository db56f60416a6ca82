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
    format_seconds,
)
from hpcgnn.report.run_folder import Run
from hpcgnn.report.score import ScoreKind, score_kind


@dataclass(frozen=True)
class ComparisonRow:
    """One run, every field formatted for reading, UNKNOWN where the run does not tell it."""

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
    """Rows of the comparison, in the order of the runs."""
    first = runs[0].summary["sent_bytes_per_epoch"]
    kind = score_kind(runs)
    return [_row(run, first, kind) for run in runs]


def known_fields(rows: list[ComparisonRow]) -> set[str]:
    """Names of the fields that at least one run tells; a column of any other would be empty."""
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
