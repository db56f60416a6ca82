"""Progress of commands that run in one process, on standard error: bars on a terminal, else lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from hpcgnn.data.options import ProgressTask


class RateColumn(ProgressColumn):
    """Rate of progress per second; empty for a step without a total."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if task.total is None or speed is None else rate_text(speed))


def rate_text(rate: float) -> str:
    """A rate with a prefix that fits, such as "3.2 M/s"."""
    for prefix in ("", "k", "M", "G"):
        if float(f"{rate:.3g}") < 1000 or prefix == "G":
            break
        rate /= 1000
    return f"{rate:.3g} {prefix}/s" if rate < 1000 else f"{rate:,.0f} {prefix}/s"


class ShownTask(ProgressTask):
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, amount: float) -> None:
        self._bars.advance(self._task, amount)


class ShownProgress:
    """callable(description, total) -> ProgressTask; a bar without a total ends when the next one starts."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._open_ended: TaskID | None = None

    def __call__(self, description: str, total: float | None) -> ProgressTask:
        self.finish()
        task = self._bars.add_task(description, total=total)
        self._open_ended = task if total is None else None
        return ShownTask(self._bars, task)

    def finish(self) -> None:
        if self._open_ended is not None:
            self._bars.update(self._open_ended, total=1, completed=1)


class StageLines:
    """callable(description, total) -> ProgressTask; one line per step as it starts, with the seconds until then."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __call__(self, description: str, total: float | None) -> ProgressTask:
        print(f"[{time.perf_counter() - self._start:6.1f} s] {description}", file=sys.stderr, flush=True)
        return ProgressTask()


@contextmanager
def shown_progress(has_lines: bool = False) -> Iterator[ShownProgress | StageLines]:
    """Show bars while the block runs; without a terminal, lines if asked, or nothing.

    HPCGNN_PROGRESS=0 leaves out the lines.
    """
    console = Console(stderr=True)
    if has_lines and not console.is_terminal and os.environ.get("HPCGNN_PROGRESS") != "0":
        yield StageLines()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), RateColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        progress = ShownProgress(bars)
        yield progress
        progress.finish()
