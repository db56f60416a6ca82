"""Text for people: numbers in short units, and output that never ends a run.

A long training writes one line per minute. A full disk (ENOSPC), a reader that has left (EPIPE) or a closed terminal
(EIO) must not end it, so `tell` and `PatientStream` discard what can't be written. Output that must arrive, such as the
output of `hpcgnn inspect`, is printed without them.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from contextlib import suppress
from typing import TextIO

DIGITS = 3
SIZES = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))


def number_text(value: float) -> str:
    """Format with three significant digits, and separators from a thousand on: 0.0123, 12.3, 1,235."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:#.{DIGITS}g}"
    return f"{float(text):.{DIGITS - 1}f}" if "e" in text and abs(value) >= 1 else text.rstrip(".")


def size_text(num_bytes: float) -> str:
    """Format a non-negative number of bytes in powers of 1000: 12 B, 2.50 kB, 412 MB."""
    if num_bytes < 1:
        return f"{num_bytes:.2g} B" if num_bytes else "0 B"
    # The unit changes at 999.5, since 999.6 kB would be rounded to 1,000 kB.
    unit, size = next(((unit, size) for unit, size in SIZES if num_bytes < 999.5 * size), SIZES[-1])
    return f"{num_bytes / size:.0f} B" if unit == "B" else f"{number_text(num_bytes / size)} {unit}"


def time_text(seconds: float) -> str:
    """Format non-negative seconds: 250 µs, 12.3 ms, 4.20 s, 3 min 20 s, 2 h 05 min."""
    for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if 0 < seconds < 999.5 * size:
            return f"{number_text(seconds / size)} {unit}"
    if seconds < 99.95:
        return f"{number_text(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


PLAIN = "hpcgnn.plain"      # the error handler that `prepare_streams` installs
# Characters that hpcgnn prints and that have no plain form in Unicode's tables.
SUBSTITUTES = {"±": "+-", "×": "x", "→": "->", "←": "<-", "–": "-", "—": "-", "−": "-", "·": ".", "•": "*", "≤": "<=",
               "≥": ">=", "≈": "~", "µ": "u", "μ": "u", "█": "#", "✓": "yes", "✗": "no", "“": '"', "”": '"', "’": "'",
               "√": "sqrt", "∞": "inf"}


def prepare_streams() -> None:
    """Open closed standard streams on the null device, and replace characters that a stream lacks by plain ones."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            # Otherwise the next file that is opened would get the descriptor, and with it a library's prints.
            with suppress(OSError):
                os.fstat(descriptor)
                continue
            opened = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8"))
    codecs.register_error(PLAIN, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)


def tell(text: str) -> None:
    """Write a line to standard error, or discard it."""
    PatientStream(sys.stderr).write(text + "\n")


class PatientStream(io.TextIOBase):
    """A stream that discards what can't be written; `stream` None discards everything."""

    def __init__(self, stream: TextIO | None):
        self._stream = stream

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has it as a plain attribute
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write and flush; return the number of characters."""
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except UnicodeEncodeError:
            self.write(text.encode(self.encoding, "replace").decode(self.encoding))
        except OSError:
            discard(self._stream)
        except ValueError:      # somebody has closed the stream
            pass
        return len(text)

    def flush(self) -> None:
        pass


def discard(stream: TextIO) -> None:
    """Discard the buffer of a stream that failed; otherwise the next line, and the exit, would fail again."""
    with suppress(OSError, ValueError, AttributeError):
        descriptor = stream.fileno()
        # Flush into the null device, then put the descriptor back.
        kept, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, descriptor)
            stream.flush()
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)
            os.close(nowhere)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_plain_form(letter) for letter in error.object[error.start:error.end]), error.end


def _plain_form(letter: str) -> str:
    if letter in SUBSTITUTES:
        return SUBSTITUTES[letter]
    if 0x2500 <= ord(letter) < 0x2580:      # lines of tables
        return "|" if letter in "│┃║" else "-" if letter in "─━═" else "+"
    decomposed = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return decomposed or "?"
