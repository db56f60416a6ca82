"""Text for people: numbers in short units, tables that fit a terminal, and output that never ends a run.

A long training writes one line per minute. A full disk (ENOSPC), a reader that has left (EPIPE) or a closed terminal
(EIO) must not end it, so `tell` and `PatientStream` discard what can't be written. Output that must arrive, such as the
output of `hpcgnn inspect`, is printed without them.
"""

from __future__ import annotations

import codecs
import io
import os
import shutil
import sys
import termios
import textwrap
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hpcgnn.run.process import stat_of

if TYPE_CHECKING:
    from rich.measure import Measurement
    from rich.table import Column, Table

DIGITS = 3
WIDEST = 1000      # columns in which a table is measured
# The launcher and its helpers between a rank and the shell, as the kernel shortens their names.
LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "prte", "prted", "orterun", "orted", "hydra_pmi_proxy",
             "srun", "slurmstepd", "timeout", "hpcgnn-launch")
LOCAL_FLAGS = 3      # index of the local modes in the result of termios.tcgetattr
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


MAX_NAMED = 8      # ranks in a sentence


def ranks_text(ranks: list[int], named: Callable[[int], str] = str) -> str:
    """Ranks in a sentence, each as `named` writes it: rank 3; ranks 0, 1, .., 7 and 2 more."""
    more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(named, ranks[:MAX_NAMED]))}{more}"


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


def watched_stream() -> TextIO | None:
    """Stream to draw progress in: standard error if it is a terminal, else the terminal of this machine's launcher.

    HPCGNN_PROGRESS=1 takes standard error in any case, 0 none.
    """
    decided = os.environ.get("HPCGNN_PROGRESS")
    if decided == "0":
        return None
    if decided == "1" or (sys.stderr is not None and sys.stderr.isatty()):
        return sys.stderr
    return _terminal_of_launcher()


def _terminal_of_launcher() -> TextIO | None:
    # A rank's own standard error is only a pipe to the launcher. Open MPI's mpirun passes output on line by line, so a
    # moving bar is drawn directly in mpirun's terminal.
    launcher = None
    try:
        process = os.getppid()
        while Path(f"/proc/{process}/comm").read_text().strip() in LAUNCHERS:
            launcher, process = process, int(stat_of(process)[1])
        if launcher is None:
            return None
        terminal = os.readlink(f"/proc/{launcher}/fd/2")
        return _opened(terminal) if terminal.startswith(("/dev/pts/", "/dev/tty")) else None
    except (OSError, ValueError):
        # No /proc, or another user's process: no terminal is known, so nothing is drawn.
        return None


def _opened(terminal: str) -> TextIO | None:
    descriptor = os.open(terminal, os.O_WRONLY | os.O_NOCTTY)
    # Ranks write from the background, and some terminals stop processes that do; such terminals are left alone.
    if not os.isatty(descriptor) or termios.tcgetattr(descriptor)[LOCAL_FLAGS] & termios.TOSTOP:
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "w", buffering=1)


def terminal_width() -> int:
    """Columns of the terminal, or the variable COLUMNS; 80 if standard output is no terminal."""
    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int | None = None, indent: int = 2) -> str:
    """One sentence as lines of at most `width` columns, the terminal's by default.

    Lines from the second on are indented. A word, such as a path, stays whole even if it is longer.
    """
    return textwrap.fill(text, width or terminal_width(), subsequent_indent=" " * indent, break_long_words=False,
                         break_on_hyphens=False)


def print_fitted(table: Table, file: TextIO, width: int, num_keys: int = 1) -> None:
    """Print a table as `fitted` makes it; digits are never cut, however narrow the terminal."""
    from rich.console import Console

    for part in fitted(table, width, num_keys):
        needed = 0 if isinstance(part, str) else _measured(part).minimum
        Console(file=file, width=max(width, needed)).print(part, markup=False, highlight=False)


def fitted_text(tables: Iterable[Table | str], remarks: Iterable[str], num_keys: int = 2) -> str:
    """Tables, or lines, and remarks as text in the terminal's width."""
    out, width = io.StringIO(), terminal_width()
    for part in (*tables, *remarks):
        if isinstance(part, str):
            out.write(wrapped(part, width) + "\n")
        else:
            print_fitted(part, out, width, num_keys)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _measured(table: Table) -> Measurement:
    from rich.console import Console

    return Console(width=WIDEST).measure(table)


def fitted(table: Table, width: int, num_keys: int = 1) -> list[Table | str]:
    """The table, or its title, several tables that have some of its columns each, and its caption.

    Each has the first `num_keys` columns, which say what a row is.
    """
    if _measured(table).maximum <= width:
        return [table]
    keys, others = table.columns[:num_keys], table.columns[num_keys:]

    def fits(columns: list[Column]) -> bool:
        return _measured(_part(table, [*keys, *columns])).maximum <= width

    blocks = [others[:1]]
    for column in others[1:]:
        if fits([*blocks[-1], column]):
            blocks[-1].append(column)
        else:
            blocks.append([column])
    # As many columns in each, if that fits too: a last block of one column looks like an afterthought.
    size = -(-len(others) // len(blocks))
    even = [others[first:first + size] for first in range(0, len(others), size)]
    blocks = even if all(map(fits, even)) else blocks
    texts = [[wrapped(str(text), width)] if text else [] for text in (table.title, table.caption)]
    return [*texts[0], *(_part(table, [*keys, *block]) for block in blocks), *texts[1]]


def _part(table: Table, columns: list[Column]) -> Table:
    from rich.table import Table

    part = Table(box=table.box, collapse_padding=True, pad_edge=False)
    for column in columns:
        part.add_column(_folded(column), justify=column.justify, no_wrap=column.no_wrap)
    cells = [list(column.cells) for column in columns]
    for number, row in enumerate(table.rows):
        part.add_row(*(of_column[number] for of_column in cells), end_section=row.end_section)
    return part


def _folded(column: Column) -> str:
    """The heading on lines that are no longer than the column's cells or the heading's longest word."""
    heading = str(column.header)
    lengths = [len(str(text)) for text in (*column.cells, *heading.split())]
    return "\n".join(textwrap.wrap(heading, max(lengths, default=1), break_on_hyphens=False))


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook; the terminal program `ipython` is not."""
    find_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(find_shell() if find_shell else None, "kernel", None) is not None
