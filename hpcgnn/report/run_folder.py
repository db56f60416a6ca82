"""Run: what a run folder says, read from config.toml, metrics.jsonl and summary.json.

Only reading and plain statistics live here; no figure, no HTML, and neither torch nor HDF5.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.config import read_toml
from hpcgnn.errors import ConfigError


@dataclass(frozen=True)
class Run:
    """One training, finished or not.

    Attributes
    ----------
    name : str                   folder name, made unique among the runs of a report
    path : Path
    config : dict                resolved settings of config.toml, without its tables
    provenance : dict            the table of that name: where and with what the run was made
    records : tuple of dict      lines of metrics.jsonl in order: seed, epoch, loss, ...
    summary : dict               summary.json over what the records alone tell, so that every run has the same keys
    is_complete : bool           summary.json exists, hence the training ended by itself
    """

    name: str
    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    records: tuple[dict[str, Any], ...]
    summary: dict[str, Any]
    is_complete: bool

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(record.get("seed", 0) for record in self.records))

    @property
    def epochs(self) -> np.ndarray:
        """Epochs that any seed has recorded, ascending, (num_epochs,) int64."""
        return np.unique([record["epoch"] for record in self.records])

    def curves(self, key: str) -> np.ndarray:
        """Values of one key, (num_seeds, num_epochs) float64, NaN where a seed did not record it."""
        rows = {seed: row for row, seed in enumerate(self.seeds)}
        columns = {epoch: column for column, epoch in enumerate(self.epochs.tolist())}
        values = np.full((len(rows), len(columns)), np.nan)
        for record in self.records:
            value = record.get(key)
            if value is not None:
                values[rows[record.get("seed", 0)], columns[record["epoch"]]] = value
        return values

    def elapsed_seconds(self) -> np.ndarray:
        """Training time up to the end of each epoch, (num_seeds, num_epochs) float64, NaN where a seed has stopped."""
        seconds = self.curves("epoch_seconds")
        return np.where(np.isnan(seconds), np.nan, np.nancumsum(seconds, axis=1))

    def median(self, key: str) -> float:
        """Median of one key over all epochs and seeds; 0 where it was never recorded."""
        values = [record[key] for record in self.records if record.get(key) is not None]
        return statistics.median(values) if values else 0.0


def read_runs(paths: list[Path]) -> list[Run]:
    """Read several run folders; those that share a folder name are called by their path.

    Raises
    ------
    ConfigError      a folder is missing or is no run folder, a file in it is damaged, a folder is given twice
    """
    resolved = [path.resolve() for path in paths]
    for number, path in enumerate(paths):
        if resolved[number] in resolved[:number]:
            raise ConfigError(f"run folder {path} is given twice; name each run once")
    names = [path.name for path in resolved]
    return [read_run(path, name if names.count(name) == 1 else str(path))
            for path, name in zip(paths, names, strict=True)]


def read_run(path: Path, name: str) -> Run:
    """Read one run folder.

    Raises
    ------
    ConfigError      as `read_runs`
    """
    metrics = path / "metrics.jsonl"
    if not metrics.is_file():
        raise ConfigError(f"{path} holds no metrics.jsonl, so it is no run folder; "
                          "give a folder that hpcgnn train --out has made")
    records = _read_records(metrics)
    if not records:
        raise ConfigError(f"{metrics} holds no finished epoch yet; wait for the first one, or train again")
    config = read_toml(path / "config.toml")
    provenance = config.pop("provenance", {})
    summary = path / "summary.json"
    is_complete = summary.exists()
    return Run(name, path, config, provenance, records,
               {**_summarize(config, provenance, records), **(_read_summary(summary) if is_complete else {})},
               is_complete)


def _read_records(path: Path) -> tuple[dict[str, Any], ...]:
    # What follows the last newline is empty, or a line that is being written or was cut off when the run was killed.
    *lines, _unfinished = _read_text(path).split("\n")
    return tuple(_parse_record(path, number, line) for number, line in enumerate(lines, start=1))


def _parse_record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _damaged_line(path, number, str(error)) from error
    if not isinstance(record, dict) or "epoch" not in record or "loss" not in record:
        raise _damaged_line(path, number, "expected an object with epoch and loss")
    for key, value in record.items():
        is_count = key in ("seed", "epoch")
        is_measure = key == "loss" or key.endswith(("_seconds", "_score")) or key.startswith("sent_bytes")
        if is_count and type(value) is not int:
            raise _damaged_line(path, number, f"{key} is {value!r}, expected a whole number")
        if is_measure and value is not None and type(value) not in (int, float):
            raise _damaged_line(path, number, f"{key} is {value!r}, expected a number")
    return record


def _damaged_line(path: Path, number: int, reason: str) -> ConfigError:
    return ConfigError(f"{path}, line {number} is damaged: {reason}; remove that line, or train again")


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(_read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}; remove it to report from metrics.jsonl alone") from error
    if not isinstance(summary, dict):
        raise ConfigError(f"{path} is damaged: it holds no object; remove it to report from metrics.jsonl alone")
    return summary


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error


def _summarize(config: dict[str, Any], provenance: dict[str, Any],
               records: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """What summary.json would say of these epochs; None for what only the training itself knows."""
    def mean(key: str) -> float:
        return statistics.fmean(record.get(key) or 0 for record in records)

    known = {**provenance, **config}
    payload, parameters = mean("sent_bytes_payload"), mean("sent_bytes_parameters")
    seconds = [record["epoch_seconds"] for record in records if record.get("epoch_seconds") is not None]
    return {
        **{key: known.get(key) for key in ("dataset", "model", "method", "bits", "ranks")},
        "score_name": "score",
        **_best_scores(records),
        "median_epoch_seconds": statistics.median(seconds) if seconds else None,
        "sent_bytes_per_epoch": payload + parameters,
        "sent_bytes_payload_per_epoch": payload,
        "sent_bytes_parameters_per_epoch": parameters,
        "peak_rss_bytes": None,
    }


def _best_scores(records: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Mean over seeds of the scores at each seed's best validation; None before the first evaluation."""
    best: dict[int, dict[str, Any]] = {}
    for record in records:
        if record.get("val_score") is None or record.get("test_score") is None:
            continue
        seed = record.get("seed", 0)
        if seed not in best or record["val_score"] > best[seed]["val_score"]:
            best[seed] = record
    if not best:
        return {"val_score": None, "test_score": None, "test_score_std": None}
    test = [record["test_score"] for record in best.values()]
    return {
        "val_score": statistics.fmean(record["val_score"] for record in best.values()),
        "test_score": statistics.fmean(test),
        "test_score_std": statistics.stdev(test) if len(test) > 1 else 0.0,
    }
