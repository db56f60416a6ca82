"""Tables and sentences that fit the width of a terminal, or 80 columns where output goes to a file or a pipe."""

from __future__ import annotations

import io
import shutil
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.measure import Measurement
    from rich.table import Column, Table

WIDEST = 1000      # columns in which a table is measured


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
