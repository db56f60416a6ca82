"""The tables of the page: results with their differences from a baseline, and differing settings and environments.

Each cell has its text and the value that it is sorted by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcgnn.report.comparison import DIFFERENCES, Difference, differences_from
from hpcgnn.report.environment import facts_of
from hpcgnn.report.formats import (
    UNKNOWN,
    format_bytes,
    format_number,
    format_percent,
    format_seconds,
)
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import ScoreKind, score_kind


@dataclass(frozen=True)
class Column:
    heading: str
    hint: str = ""
    is_number: bool = False
    difference: str = ""


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None
    verdict: str = ""


@dataclass(frozen=True)
class Table:
    columns: list[Column]
    rows: list[list[Cell]]
    alike: dict[str, str]


def results_table(runs: list[Run], baseline: int = 0) -> Table:
    """Score, seconds, bytes and memory of each run, with differences from the baseline.

    Columns without values are left out.
    """
    kind = score_kind(runs)
    made: list[tuple[Column, Callable[[Run], Cell]]] = [
        (Column(f"test {kind.heading}", "at the epoch with the best validation score", True),
         lambda run: _score(run.summary["test_score"], run.summary["test_score_std"], kind)),
        (Column("validation" + (f" ({kind.unit})" if kind.unit else ""), "the best", True),
         lambda run: _score(run.summary["val_score"], None, kind)),
        (Column("epoch", "median seconds of an epoch", True),
         lambda run: _cell(run.summary["median_epoch_seconds"], format_seconds)),
        (Column("training", "seconds of all epochs, without evaluation; the mean over seeds", True),
         lambda run: _cell(training_seconds(run), format_seconds)),
        (Column("sent per epoch", "bytes handed to MPI in training, all ranks: messages and sums", True),
         lambda run: _cell(run.summary["sent_bytes_per_epoch"], format_bytes)),
        (Column("bits per value", "payload bits", True), lambda run: _cell(run.summary["mean_bits"], format_number)),
        (Column("blocked (%)", "share of a mean epoch that a rank waits for messages", True), _blocked),
        (Column("synchronous (%)", "epochs that waited for their messages", True),
         lambda run: _cell(run.summary["synchronous_share"], format_percent)),
        (Column("peak memory", "of the fullest rank", True),
         lambda run: _cell(run.summary["peak_rss_bytes"], format_bytes)),
        (Column("epochs", "epochs per seed so far", True),
         lambda run: Cell(f"{run.epochs[-1]:,}", int(run.epochs[-1]))),
        (Column("seeds", "", True), lambda run: Cell(", ".join(map(str, run.seeds)), len(run.seeds))),
        *((Column(key, "", key == "ranks"), _summary_cell(key)) for key in ("ranks", "dataset", "model", "method")),
    ]
    columns = [column for column, _ in made]
    rows = [[cell_of(run) for _, cell_of in made] for run in runs]
    if len(runs) > 1:
        found = differences_from(runs, baseline)
        for key, (heading, place) in reversed(DIFFERENCES.items()):
            columns.insert(place, Column(heading, "against the baseline", True, key))
            for row, differences in zip(rows, found, strict=True):
                row.insert(place, _difference_cell(differences[key]))
    filled = [place for place in range(len(columns)) if any(row[place].text != UNKNOWN for row in rows)]
    return Table([columns[place] for place in filled], [[row[place] for place in filled] for row in rows], {})


def settings_table(runs: list[Run]) -> Table:
    return _split([{key: _text(value) for key, value in run.config.items()} for run in runs])


def environment_table(runs: list[Run]) -> Table:
    return _split([facts_of(run) for run in runs])


def training_seconds(run: Run) -> float | None:
    """Seconds of all epochs of a training, the mean over its seeds; None without records."""
    seconds = run.mean("epoch_seconds")
    return None if seconds is None else seconds * len(run.records) / len(run.seeds)


def _split(facts: list[dict[str, str]]) -> Table:
    keys = list(dict.fromkeys(key for one in facts for key in one))
    # Facts that most runs have come first: a method's own settings are blank for all other methods.
    differing = sorted((key for key in keys if len({one.get(key) for one in facts}) > 1),
                       key=lambda key: sum(key not in one for one in facts))
    rows = [[Cell(one.get(key, UNKNOWN), _sort_value(one.get(key))) for key in differing] for one in facts]
    return Table([Column(key, is_number=_are_numbers([one.get(key) for one in facts])) for key in differing], rows,
                 {key: facts[0][key] for key in keys if key not in differing})


def _summary_cell(key: str) -> Callable[[Run], Cell]:
    return lambda run: Cell(_text(run.summary[key]), run.summary[key])


def _score(score: float | None, deviation: float | None, kind: ScoreKind) -> Cell:
    return Cell(kind.show(score, deviation), score)


def _cell(value: float | None, write: Callable[[float | None], str]) -> Cell:
    return Cell(write(value), value)


def _blocked(run: Run) -> Cell:
    blocked, epoch = run.mean("blocked_seconds"), run.mean("epoch_seconds")
    share = blocked / epoch if blocked is not None and epoch else None
    return _cell(share, format_percent)


def _difference_cell(difference: Difference) -> Cell:
    return Cell(difference.text, difference.value, difference.verdict)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _sort_value(text: str | None) -> float | str | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _are_numbers(texts: list[str | None]) -> bool:
    return all(isinstance(_sort_value(text), (float, type(None))) for text in texts)
