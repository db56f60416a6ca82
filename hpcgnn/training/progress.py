"""EpochDisplay: rank 0 shows epochs as a bar in a terminal or a notebook, or as one line per minute in a log."""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import rich.console
import rich.progress

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.run.output import PatientStream, discard, is_notebook, size_text, tell, time_text, watched_stream
from hpcgnn.training.checkpoint import Progress
from hpcgnn.training.epoch_trace import EpochTrace
from hpcgnn.training.evaluate import Evaluation
from hpcgnn.training.scores import SCORES, Score

if TYPE_CHECKING:
    from hpcgnn.run.notebook import CellLine

DEFAULT_SECONDS = 60.0


def seconds_between_lines() -> float:
    text = os.environ.get("HPCGNN_PROGRESS_SECONDS", str(DEFAULT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ConfigError(f"HPCGNN_PROGRESS_SECONDS is {text!r}; expected seconds between two lines, 0 for none")
    return seconds


def _cell_line() -> CellLine:
    from hpcgnn.run.notebook import CellLine

    return CellLine()


class EpochDisplay:
    """Context manager that shows seed, loss, validation score, bytes sent and time of each epoch."""

    def __init__(self, config: TrainConfig, is_shown: bool, score: Score = SCORES["accuracy"]):
        self._score = score
        is_off = not is_shown or os.environ.get("HPCGNN_PROGRESS") == "0"
        self._cell = _cell_line() if not is_off and is_notebook() else None
        self._stream = watched_stream() if is_shown and self._cell is None else None
        is_quiet = is_off or self._cell is not None or self._stream is not None
        self._line_seconds = 0.0 if is_quiet else seconds_between_lines()
        self._next_line = 0.0        # the first epoch has a line
        self._num_epochs = config.epochs
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"), rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(), rich.progress.TextColumn("{task.fields[state]}"),
            rich.progress.TimeRemainingColumn(), console=_console(self._stream), disable=self._stream is None)
        self._task = self._bar.add_task("epoch", total=config.epochs, state="")
        self._val_score = float("nan")

    def __enter__(self) -> EpochDisplay:
        self._bar.start()
        # A launcher may kill this rank at Ctrl-C, and the terminal must not be left without its cursor.
        self._bar.console.show_cursor(True)
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()
        if self._cell is not None:
            self._cell.end()
        if self._stream not in (None, sys.stderr):
            discard(self._stream)
            self._stream.close()

    def advance(self, seed: int, progress: Progress, trace: EpochTrace, evaluation: Evaluation | None) -> None:
        if evaluation is not None:
            self._val_score = evaluation.val_score
        sent = size_text(trace.sent_bytes_payload + trace.sent_bytes_parameters + trace.sent_bytes_sums)
        val = "" if math.isnan(self._val_score) else f"val {self._score.show(self._val_score)}  "
        state = f"loss {trace.loss:.4f}  {val}sent {sent} in {time_text(trace.epoch_seconds)}"
        self._bar.update(self._task, description=f"seed {seed}", completed=progress.epoch, state=state)
        line = f"seed {seed}  epoch {progress.epoch}/{self._num_epochs}  {state}"
        if self._cell is not None:
            self._cell.show(line, progress.epoch / self._num_epochs)
        now = time.monotonic()
        if self._line_seconds and now >= self._next_line:
            self._next_line = now + self._line_seconds
            tell(line)


def _console(stream) -> rich.console.Console:
    file: Any = PatientStream(stream or sys.stderr)
    if stream in (None, sys.stderr):
        return rich.console.Console(file=file, force_terminal=True if stream is not None else None)
    columns = None
    with suppress(OSError):      # the terminal has just been closed
        columns = os.get_terminal_size(stream.fileno()).columns
    return rich.console.Console(file=file, force_terminal=True, width=columns or None)
