"""The comparison of several runs as text: one row a run, the first being what the others are measured against.

The terminal's table and the HTML page show the same rows; how they look is decided there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from hpcgnn.report.run_folder import Run

UNKNOWN = "–"
# Columns of the page that only some runs fill, with their headings.
OPTIONAL_COLUMNS = (("mean_bits", "mean bits\na value"), ("synchronous_share", "synchronous\nepochs (%)"),
                    ("blocked_seconds", "blocked an\nepoch (s)"))


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
        test_score=format_score(summary["test_score"], summary["test_score_std"]),
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


def score_label(runs: list[Run]) -> str:
    """Name of the score that all runs share, else "score"."""
    names = {run.summary["score_name"] for run in runs if run.is_complete}
    return {"micro_f1": "micro-F1", "roc_auc": "ROC AUC"}.get(name := names.pop(), name) if len(names) == 1 else "score"


def format_number(value: float | None) -> str:
    """Three significant digits and thousands separators: 0.0123, 1.23, 12.3, 1,235."""
    if value is None:
        return UNKNOWN
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2
    while digits < 8 and abs(value) < 10 ** (2 - digits):
        digits += 1
    return f"{value:.{digits if abs(value) < 10 else 1}f}"


def format_score(score: float | None, deviation: float | None) -> str:
    """A score in percent, with its standard deviation over seeds where there is one: 81.23 ± 0.41."""
    if score is None:
        return UNKNOWN
    return f"{100 * score:.2f}" + (f" ± {100 * deviation:.2f}" if deviation else "")


def format_percent(share: float | None) -> str:
    """A share of 0 to 1 in percent, without the sign: 100, 12.5."""
    return format_number(None if share is None else 100 * share)


def format_histogram(histogram: dict[str, float]) -> str:
    """Shares of message rows by bit-width: 1: 75 %, 8: 25 %."""
    total = sum(histogram.values())
    shares = sorted((int(width), count) for width, count in histogram.items())
    return ", ".join(f"{width}: {100 * count / total:.3g} %" for width, count in shares if count) or UNKNOWN


def format_ratio(value: float, first: float) -> str:
    """Write `value` as a multiple of the first run's: 1, 1/15.7 or 2.1×."""
    if not first or not value:
        return UNKNOWN
    if value == first:
        return "1"
    return f"1/{format_number(first / value)}" if value < first else f"{format_number(value / first)}×"


def format_bytes(value: float | None) -> str:
    """Bytes in the decimal unit that keeps the number short: 412 MB, 3.21 GB."""
    if value is None:
        return UNKNOWN
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{format_number(value / size)} {unit}"
    return f"{value:.0f} B"


def _text(value: object) -> str:
    return UNKNOWN if value is None else str(value)
