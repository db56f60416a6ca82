"""`Run` holds the content of a run folder, read from config.toml, metrics.jsonl and summary.json and checked once.

If a line lacks a field, its value is unknown, whichever version wrote the line; further fields are kept, but not read.
Imports neither torch nor HDF5.
"""

from __future__ import annotations

import itertools
import reprlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.registry import read_json, read_toml
from hpcgnn.report.summary import summarize, values_of

MODES = ("sync", "async")
BY_RANK = ("compute_seconds", "quantize_seconds", "exchange_seconds", "blocked_seconds", "sent_bytes", "rss_bytes")


def read_runs(paths: list[Path]) -> list[Run]:
    """Read run folders; if several have the same folder name, their paths are their names.

    Raises ConfigError: a folder is missing, is not a run folder or is given twice, or a file in it is damaged.
    """
    resolved = [path.resolve() for path in paths]
    for number, path in enumerate(paths):
        if resolved[number] in resolved[:number]:
            raise ConfigError(f"run folder {path} is given twice; name each run once")
    names = [path.name for path in resolved]
    return [read_run(path, name if names.count(name) == 1 else str(path))
            for path, name in zip(paths, names, strict=True)]


def read_run(path: Path, name: str) -> Run:
    metrics = path / "metrics.jsonl"
    if not metrics.is_file():
        if (path / "graph.h5").is_file():
            raise ConfigError(f"{path} is a folder of shards and holds no run; give a folder that hpcgnn train --out "
                              "has made")
        raise ConfigError(f"{path} holds no metrics.jsonl, so it is no run folder; "
                          "give a folder that hpcgnn train --out has made")
    summary = path / "summary.json"
    is_complete = summary.exists()
    records = read_records(metrics, is_complete)
    if not records:
        raise ConfigError(f"{metrics} holds no finished epoch yet; wait for the first one, or train again")
    said = _read_summary(summary) if is_complete else {}
    if "sent_bytes_messages_per_epoch" not in said:      # up to version 0.3 all bytes were of messages alone
        said.pop("sent_bytes_per_epoch", None)
    _check_epochs(metrics, records, said.get("num_epochs_recorded", len(records)))
    config = read_toml(path / "config.toml")
    provenance = config.pop("provenance", {})
    return Run(name, path, config, provenance, records, {**summarize(config, provenance, records), **said}, is_complete)


def read_records(path: Path, is_complete: bool = False) -> tuple[dict[str, Any], ...]:
    """Finished lines of metrics.jsonl in order. With `is_complete` the run has ended, so every line must be finished.

    Raises ConfigError: the file can't be read, or a line is damaged.
    """
    # The text after the last newline is empty, or a line that is being written or was cut off when the run was killed.
    *lines, unfinished = read_text(path).split("\n")
    if is_complete and unfinished:
        raise _damaged_line(path, len(lines) + 1, "the file ends within it")
    found = [_parse_record(path, number, line) for number, line in enumerate(lines, start=1)]
    # An earlier version wrote no checksums; this one writes one in every line.
    unsealed = [number for number, (_, is_sealed) in enumerate(found, start=1) if not is_sealed]
    if unsealed and len(unsealed) < len(found):
        raise _damaged_line(path, unsealed[0], "it has no checksum, and other lines have one")
    return tuple(record for record, _ in found)


def read_text(path: Path) -> str:
    """A whole file; bytes that are not UTF-8 become replacement characters. Raises ConfigError if it can't be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error


def has_valid_widths(summary: dict[str, Any]) -> bool:
    """Whether learned widths in summary.json, if any, have one entry per layer with numbers by in-degree."""
    entries = summary.get("widths_by_degree", [])
    return isinstance(entries, list) and all(isinstance(entry, dict) and _are_columns(
        [entry.get(key) for key in ("in_degree", "num_nodes", "bit_width")]) for entry in entries)


def _are_columns(columns: list[Any]) -> bool:
    return all(isinstance(column, list) and len(column) == len(columns[0]) > 0 and all(map(_is_whole, column))
               for column in columns)


def _parse_record(path: Path, number: int, line: str) -> tuple[dict[str, Any], bool]:
    try:
        record, is_sealed = read_json(line)
    except ValueError as error:
        raise _damaged_line(path, number, str(error)) from error
    if "epoch" not in record or "loss" not in record:
        raise _damaged_line(path, number, "expected an object with epoch and loss")
    for key, value in record.items():
        is_valid, expected = _is_valid(key, value)
        if not is_valid:
            raise _damaged_line(path, number, f"{key} is {reprlib.repr(value)}, expected {expected}")
    return record, is_sealed


def _damaged_line(path: Path, number: int, reason: str) -> ConfigError:
    return ConfigError(f"{path}, line {number} is damaged: {reason}; remove that line, or train again")


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_histogram(value: Any) -> bool:
    return isinstance(value, dict) and all(
        width.isdecimal() and int(width) > 0 and _is_number(count) and count >= 0 for width, count in value.items())


def _are_lists_by_rank(value: Any) -> bool:
    if value == {}:
        return True
    lists = list(value.values()) if isinstance(value, dict) else [None]
    return set(BY_RANK) <= set(value) and all(
        isinstance(one, list) and len(one) == len(lists[0]) > 0 and all(map(_is_number, one)) for one in lists)


def _is_square(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and len(row) == len(value) and all(map(_is_number, row)) for row in value)


# Of a field of a line: whether a value is valid, and what is expected. Fields but seed and epoch may be null.
EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (_is_whole, "a whole number"), "epoch": (_is_whole, "a whole number"),
    "mode": (lambda value: value in MODES, " or ".join(MODES)),
    "width_histogram": (_is_histogram, "numbers of rows by bit-width"),
    "by_rank": (_are_lists_by_rank, "lists of numbers, one per rank"),
    "sent_bytes_by_pair": (_is_square, "a square table of numbers"),
    **dict.fromkeys(("loss", "ldr", "mean_bits", "base_bits", "staleness"), (_is_number, "a number"))}


def _is_valid(key: str, value: Any) -> tuple[bool, str]:
    is_valid, expected = EXPECTED.get(key, (
        _is_number if key.endswith(("_seconds", "_score")) or key.startswith("sent_bytes") else lambda value: True,
        "a number"))
    return is_valid(value) or (value is None and key not in ("seed", "epoch")), expected


@dataclass(frozen=True)
class Run:
    name: str                              # folder name, made unique among the runs of a report
    path: Path
    config: dict[str, Any]                 # resolved settings of config.toml, without the tables
    provenance: dict[str, Any]             # the table [provenance] of config.toml: where and with what the run was made
    records: tuple[dict[str, Any], ...]    # lines of metrics.jsonl in order: seed, epoch, loss, ...
    summary: dict[str, Any]  # summary.json, completed from the records, so every run has the same keys
    is_complete: bool                      # summary.json exists, so the training was not interrupted

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(record.get("seed", 0) for record in self.records))

    @property
    def epochs(self) -> np.ndarray:
        """Epochs that any seed has recorded, ascending, (num_epochs,) int64."""
        return np.unique([record["epoch"] for record in self.records])

    def curves(self, key: str) -> np.ndarray:
        """Values of one key, (num_seeds, num_epochs) float64, NaN if a seed did not record it."""
        rows = {seed: row for row, seed in enumerate(self.seeds)}
        columns = {epoch: column for column, epoch in enumerate(self.epochs.tolist())}
        values = np.full((len(rows), len(columns)), np.nan)
        for record in self.records:
            value = record.get(key)
            if value is not None:
                values[rows[record.get("seed", 0)], columns[record["epoch"]]] = value
        return values

    def elapsed_seconds(self) -> np.ndarray:
        """Training time up to the end of each epoch, (num_seeds, num_epochs) float64, NaN after a seed has stopped."""
        seconds = self.curves("epoch_seconds")
        return np.where(np.isnan(seconds), np.nan, np.nancumsum(seconds, axis=1))

    def median(self, key: str) -> float:
        """Median of one key over all epochs and seeds; 0 if it was never recorded."""
        values = values_of(self.records, key)
        return statistics.median(values) if values else 0.0

    def mean(self, key: str) -> float | None:
        values = values_of(self.records, key)
        return statistics.fmean(values) if values else None

    @property
    def first_seed(self) -> tuple[dict[str, Any], ...]:
        """The first seed's records, for a controller's decisions by epoch: these have no mean over seeds."""
        seed = self.seeds[0]
        return tuple(record for record in self.records if record.get("seed", 0) == seed)


def _check_epochs(metrics: Path, records: tuple[dict[str, Any], ...], num_recorded: int) -> None:
    # No complete line may be lost, repeated or moved.
    epochs = [(record.get("seed", 0), record["epoch"]) for record in records]
    if any(after <= before for before, after in itertools.pairwise(epochs)):
        raise ConfigError(f"{metrics} is damaged: its epochs do not ascend; restore it, or train again")
    if len(epochs) != num_recorded:
        raise ConfigError(f"{metrics} is damaged: it has {len(epochs)} epochs, the summary in its folder counts "
                          f"{num_recorded}; restore it, or train again")


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary, _ = read_json(read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}; remove it to report from metrics.jsonl alone") from error
    if not has_valid_widths(summary):
        raise ConfigError(f"{path} is damaged: widths_by_degree must list in_degree, num_nodes and bit_width with "
                          "equally many numbers; remove it to report from metrics.jsonl alone")
    return summary


class MeasuredRun(NamedTuple):
    """Measurements of a run's parts.

    `shards` is the folder that the run was trained on. `seconds` has one number per rank: an epoch without messages,
    the median of the epochs that recorded it.
    """

    shards: str
    num_layers: int
    seconds: tuple[float, ...]


def read_measured(path: Path) -> MeasuredRun:
    """Read a run folder.

    Raises ConfigError: it is not a run folder, is damaged, or does not record each rank's seconds.
    """
    (run,) = read_runs([Path(path)])
    tables = [record["by_rank"]["compute_seconds"] for record in run.records if record.get("by_rank")]
    tables = tables[1:] or tables      # the first epoch also builds what later ones reuse
    if not tables or "shards" not in run.provenance or "layers" not in run.config:
        raise ConfigError(f"{path} does not say how long each rank computed: it had one rank, or was never evaluated; "
                          "train on several ranks for some evaluations")
    seconds = np.median(np.array(tables, dtype=float), axis=0)
    if not (seconds > 0).all():
        raise ConfigError(f"{path} says that rank {int(seconds.argmin())} computed for {seconds.min():.3g} s per "
                          "epoch; expected more than 0: train on it for longer")
    return MeasuredRun(run.provenance["shards"], int(run.config["layers"]), tuple(seconds.tolist()))
