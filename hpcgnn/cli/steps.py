"""Steps of a benchmark, said on standard error as they begin and end.

Nothing is drawn between two calls: no thread takes time from what is measured.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TextIO

from hpcgnn.training.terminal import watched_stream
from hpcgnn.units import time_text

CLEAR_LINE = "\r\x1b[2K"


class Steps:
    """Say which step is under way, on a terminal that somebody watches, and what each has found.

    On a terminal the step that is under way stands in the last line, after the time since the start, and what it found
    takes its place. Where HPCGNN_PROGRESS=1 asks for progress in a file, both are lines. Else only findings are said,
    one line each, on standard error.

    Parameters
    ----------
    stream : file or None      where progress is drawn; None is nowhere
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._started = stream, time.monotonic()
        self._is_live = stream is not None and stream.isatty()

    @classmethod
    def watched(cls) -> Steps:
        """Return the steps of this process, which somebody may watch; see `watched_stream`."""
        return cls(watched_stream())

    def begin(self, step: str) -> None:
        """Say what is under way from now on."""
        if self._stream is None:
            return
        end = "" if self._is_live else "\n"
        line = self._fitting(self._timed(f"{step} .."))
        print(f"{self._clear}{line}", end=end, file=self._stream, flush=True)

    def end(self, step: str, found: str) -> None:
        """Say what a step has found."""
        if self._stream is None:
            print(f"{step}: {found}", file=sys.stderr, flush=True)
        else:
            print(f"{self._clear}{self._timed(f'{step}: {found}')}", file=self._stream, flush=True)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        """Take away what is under way: an error or a table comes next."""
        if self._is_live:
            print(self._clear, end="", file=self._stream, flush=True)

    @property
    def _clear(self) -> str:
        return CLEAR_LINE if self._is_live else ""

    def _timed(self, text: str) -> str:
        seconds = time.monotonic() - self._started
        elapsed = f"{seconds:.0f} s" if seconds < 99.5 else time_text(seconds)
        return f"{elapsed:>11}  {text}"

    def _fitting(self, line: str) -> str:
        """Return as much of a line as the terminal has room for: one that folds could not be taken away again."""
        if not self._is_live:
            return line
        columns = os.get_terminal_size(self._stream.fileno()).columns
        return line[:columns - 1] if columns else line      # some terminals don't tell
