"""A run while it trains: its metrics, read as they grow, and their display in a terminal."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcgnn.errors import ConfigError
from hpcgnn.registry import read_json
from hpcgnn.report.formats import LOW_SCORES
from hpcgnn.report.summary import SENT
from hpcgnn.run.output import size_text, time_text

BARS = "▁▂▃▄▅▆▇█"
NUM_BARS = 32
RECENT = 20                 # last epochs; their median is the rate


@dataclass
class MetricsTail:
    """The finished lines of metrics.jsonl, read as they are written."""

    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    _num_bytes: int = 0

    def read_on(self) -> None:
        """Read the lines that were finished since the last call; begin again if the file was cut back.

        Raises ConfigError: the file can't be read, or a line is damaged.
        """
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._num_bytes:
                    self.records, self._num_bytes = [], 0
                file.seek(self._num_bytes)
                finished = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{self.path} can't be read: {error.strerror}") from error
        self._num_bytes += len(finished[0]) + len(finished[1])
        for line in finished[0].splitlines():
            self.records.append(self._record(line))

    def _record(self, line: bytes) -> dict[str, Any]:
        try:
            record, _ = read_json(line.decode())
            return {"seed": 0, **record, "epoch": int(record["epoch"])}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.path}, line {len(self.records) + 1} is damaged: {error}; remove that line, or "
                              "train again") from error


@dataclass(frozen=True)
class Standing:
    config: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def last(self) -> dict[str, Any]:
        return self.records[-1]

    @property
    def place(self) -> str:
        repeat, first = self.config.get("repeat", 1), self.config.get("seed", 0)
        seed = f"seed {self.last['seed'] - first + 1} of {repeat}, " if repeat > 1 else ""
        return f"{seed}epoch {self.last['epoch']} of {self.config.get('epochs', '?')}"

    @property
    def epoch_seconds(self) -> float:
        return statistics.median(record.get("epoch_seconds") or 0.0 for record in self.records[-RECENT:])

    @property
    def share(self) -> float:
        epochs = self.config.get("epochs") or self.last["epoch"]
        done = (self.last["seed"] - self.config.get("seed", 0)) * epochs + self.last["epoch"]
        return min(1.0, done / max(1, epochs * self.config.get("repeat", 1)))

    @property
    def seconds_left(self) -> float:
        """Seconds of the remaining epochs, without early stopping."""
        epochs, repeat = self.config.get("epochs") or self.last["epoch"], self.config.get("repeat", 1)
        return (1 - self.share) * epochs * repeat * self.epoch_seconds

    def values(self, key: str) -> list[float]:
        return [record[key] for record in self.records
                if record["seed"] == self.last["seed"] and record.get(key) is not None]

    @property
    def best_score(self) -> float | None:
        """Best validation score of the current training; None before the first one."""
        scores = self.values("val_score")
        better = min if self.config.get("score") in LOW_SCORES else max
        return better(scores) if scores else None

    @property
    def sent_bytes(self) -> tuple[float, float]:
        """Bytes of the last epoch, and of all."""
        each = [sum(record.get(f"sent_bytes_{part}") or 0 for part in SENT) for record in self.records]
        return each[-1], sum(each)

    @property
    def widths(self) -> str:
        mode = {"sync": "synchronous", "async": "asynchronous"}.get(self.last.get("mode"), "")
        histogram, bits = self.last.get("width_histogram") or {}, self.last.get("mean_bits")
        total = sum(histogram.values())
        shares = ", ".join(f"{100 * count / total:.0f} % of rows at {width}" for width, count in
                           sorted(histogram.items(), key=lambda item: int(item[0])) if count) if total else ""
        return "; ".join(filter(None, (mode, "" if bits is None else f"{bits:.2f} bits per value", shares)))


def lines_of(standing: Standing, checkpoint: Path, now: float | None = None) -> list[str]:
    """The display of a run in a terminal, line by line.

    `checkpoint` is the path of the run folder's checkpoint; `now` is Unix time, by default the present.
    """
    scores, last = standing.values("val_score"), standing.last
    epoch_bytes, all_bytes = standing.sent_bytes
    lines = [f"{standing.place}  {bar(standing.share)}  {time_text(standing.epoch_seconds)} per epoch, "
             f"{time_text(standing.seconds_left)} left",
             f"loss   {_number(last.get('loss'))}  {sparkline(standing.values('loss'))}"]
    if scores:
        lines.append(f"val    {_number(scores[-1])}, best {_number(standing.best_score)}  {sparkline(scores)}")
    lines.append(f"sent   {size_text(epoch_bytes)} per epoch, {size_text(all_bytes)} so far"
                 + (f"; {standing.widths}" if standing.widths else ""))
    return [*lines, f"saved  {age_of(checkpoint, now)}"]


def line_of(standing: Standing) -> str:
    val = "".join(f"  val {_number(value)}" for value in standing.values("val_score")[-1:])
    return (f"{standing.place}  loss {_number(standing.last.get('loss'))}{val}  "
            f"sent {size_text(standing.sent_bytes[0])} in {time_text(standing.epoch_seconds)}")


def sparkline(values: Sequence[float]) -> str:
    """Values as bars of eight heights, from the least to the largest; if there are many, neighbors are averaged."""
    if not values:
        return ""
    step = max(1, -(-len(values) // NUM_BARS))
    means = [statistics.fmean(values[start:start + step]) for start in range(0, len(values), step)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in means)


def bar(share: float, width: int = 24) -> str:
    filled = round(share * width)
    return "█" * filled + "░" * (width - filled)


def age_of(checkpoint: Path, now: float | None = None) -> str:
    try:
        written = checkpoint.stat().st_mtime
    except OSError:
        return "no checkpoint yet"
    return f"checkpoint {time_text(max(0.0, (time.time() if now is None else now) - written))} ago"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4f}"
