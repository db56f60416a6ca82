"""The tables of the page: results with their differences from a baseline, and differing settings and environments.

An environment is where, when and with what a run was made; facts that the folder does not have are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hpcgnn.report.comparison import DIFFERENCES, Cell, differences_from
from hpcgnn.report.formats import (
    UNKNOWN,
    format_bytes,
    format_histogram,
    format_number,
    format_percent,
    format_seconds,
)
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import score_kind


@dataclass(frozen=True)
class Column:
    heading: str
    hint: str = ""
    is_number: bool = False
    difference: str = ""


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
         lambda run: Cell(kind.show(run.summary["test_score"], run.summary["test_score_std"]),
                          run.summary["test_score"])),
        (Column("validation" + (f" ({kind.unit})" if kind.unit else ""), "the best", True),
         _of_summary("val_score", kind.show)),
        (Column("epoch", "median seconds of an epoch", True),
         _of_summary("median_epoch_seconds", format_seconds)),
        (Column("training", "seconds of all epochs, without evaluation; the mean over seeds", True),
         lambda run: Cell(format_seconds(training_seconds(run)), training_seconds(run))),
        (Column("sent per epoch", "bytes handed to MPI in training, all ranks: messages and sums", True),
         _of_summary("sent_bytes_per_epoch", format_bytes)),
        (Column("bits per value", "payload bits", True), _of_summary("mean_bits", format_number)),
        (Column("blocked (%)", "share of a mean epoch that a rank waits for messages", True), _blocked),
        (Column("synchronous (%)", "epochs that waited for their messages", True),
         _of_summary("synchronous_share", format_percent)),
        (Column("peak memory", "of the fullest rank", True), _of_summary("peak_rss_bytes", format_bytes)),
        (Column("epochs", "epochs per seed so far", True),
         lambda run: Cell(f"{run.epochs[-1]:,}", int(run.epochs[-1]))),
        (Column("seeds", "", True), lambda run: Cell(", ".join(map(str, run.seeds)), len(run.seeds))),
        *((Column(key, "", key == "ranks"), _of_summary(key, _text))
          for key in ("ranks", "dataset", "model", "method")),
    ]
    columns = [column for column, _ in made]
    rows = [[cell_of(run) for _, cell_of in made] for run in runs]
    if len(runs) > 1:
        found = differences_from(runs, baseline)
        for key, (heading, place) in reversed(DIFFERENCES.items()):
            columns.insert(place, Column(heading, "against the baseline", True, key))
            for row, differences in zip(rows, found, strict=True):
                row.insert(place, differences[key])
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
    columns = [Column(key, is_number=all(not isinstance(row[place].value, str) for row in rows))
               for place, key in enumerate(differing)]
    return Table(columns, rows, {key: facts[0][key] for key in keys if key not in differing})


def _of_summary(key: str, write: Callable[[Any], str]) -> Callable[[Run], Cell]:
    return lambda run: Cell(write(run.summary[key]), run.summary[key])


def _blocked(run: Run) -> Cell:
    blocked, epoch = run.mean("blocked_seconds"), run.mean("epoch_seconds")
    share = blocked / epoch if blocked is not None and epoch else None
    return Cell(format_percent(share), share)


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


# Keys of [provenance] and of the summary's versions, in this order, with the words of the page.
PROVENANCE = {"commit": "commit", "launcher": "launcher", "processor": "processor", "cores": "cores of rank 0",
              "simd": "instruction set", "platform": "platform", "hpcgnn": "hpcgnn", "python": "python",
              "torch": "torch", "numpy": "numpy", "mpi4py": "mpi4py", "mpi": "MPI", "shards": "shards"}


def facts_of(run: Run) -> dict[str, str]:
    known = {**(run.summary.get("versions") or {}), **run.provenance}
    facts = {"state": state_of(run), "started": _date(known.get("started")),
             "ended": _date(run.summary.get("ended")), "wall time": wall_time(run), "host": hosts_of(run),
             **{name: str(known[key]) for key, name in PROVENANCE.items() if known.get(key) not in (None, "")},
             **{key: str(run.summary[key]) for key in ("device", "transport") if run.summary.get(key)},
             **_sizes(run),
             "variables": ", ".join(map(str, known.get("variables") or [])), "command": known.get("command")}
    return {name: str(value) for name, value in facts.items() if value}


def state_of(run: Run) -> str:
    return "complete" if run.is_complete else f"unfinished, epoch {run.records[-1]['epoch']}"


def wall_time(run: Run) -> str:
    """Time from the last start of the command to the end of the run; "" if either time is unknown."""
    started, ended = (_parsed(value) for value in (run.provenance.get("started"), run.summary.get("ended")))
    if started is None or ended is None or (started.tzinfo is None) != (ended.tzinfo is None):
        return ""
    return format_seconds(max(0.0, (ended - started).total_seconds()))


def hosts_of(run: Run) -> str:
    """Hosts of the ranks with their numbers of ranks; only rank 0's while the run is not complete."""
    hosts = (run.summary.get("parts_by_rank") or {}).get("host") or []
    counted = {host: hosts.count(host) for host in hosts}
    return ", ".join(f"{host} ({count} rank{'s' * (count > 1)})" for host, count in counted.items()) or str(
        run.provenance.get("host") or "")


def _sizes(run: Run) -> dict[str, str]:
    summary = run.summary
    sizes = {f"{name} messages": format_bytes(summary[key]) for key, name in
             (("setup_bytes", "setup"), ("evaluation_bytes", "evaluation")) if summary.get(key) is not None}
    if summary.get("width_histogram"):
        sizes["message rows by width"] = format_histogram(summary["width_histogram"])
    if summary.get("method_state_bytes"):
        sizes["kept between epochs, per rank"] = format_bytes(summary["method_state_bytes"])
    if summary.get("assign_seconds"):
        sizes["seconds spent deciding"] = format_number(summary["assign_seconds"])
    return sizes


def _parsed(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        return None


def _date(value: object) -> str:
    moment = _parsed(value)
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S") + (" UTC" if moment.tzinfo else "")
