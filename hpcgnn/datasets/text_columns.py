"""Text files with columns of any kind, texts among them: whether they have a header, and what type a column is.

Tables of numbers alone are read faster by `tables`. What the columns mean is decided by each source.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hpcgnn.datasets import tables
from hpcgnn.datasets.columns import MISSING_TEXTS
from hpcgnn.datasets.limits import check_file, check_memory
from hpcgnn.datasets.tables import GZIP_MAGIC, is_number
from hpcgnn.errors import DatasetError

# First cells of columns that no node is called like.
HEADER_WORDS = frozenset((
    "id", "node", "node_id", "nodeid", "name", "key", "vertex", "vertex_id", "index", "source", "target", "src", "dst",
    "from", "to", "source_id", "target_id", "weight", "label", "labels", "class", "split", "role", "feature", "y"))
MAX_SHOWN = 60
BLOCK_BYTES = 1 << 20
BYTES_A_CHARACTER = 10     # of a short cell as an object of Python, and its column


@dataclass(frozen=True)
class TextColumns:
    """Hold the cells of a text file.

    Attributes
    ----------
    path : Path
    header : tuple of str or None      the names of columns, None where the first line is data
    columns : list of lists of str     one list a column
    """

    path: Path
    header: tuple[str, ...] | None
    columns: list[list[str]]

    @property
    def remark(self) -> str:
        """Return what was decided of the first line, for the cleaning report."""
        if self.header is None:
            return f"{self.path.name} has no header"
        return f"the first line of {self.path.name} is its header: {','.join(self.header)[:MAX_SHOWN]}"


def read_text_columns(path: Path, has_header: bool | None = None) -> TextColumns:
    """Read a text table as texts, separated by commas, semicolons, tabs or blanks, plain or gzipped.

    Lines that start with # are left out. Cells may be quoted as in CSV.

    Parameters
    ----------
    has_header : bool or None      None finds out: a first line of texts is a header if it stands above a column of
                                   numbers, or holds a usual name such as id, source or label

    Raises
    ------
    DatasetError                   a file that is missing, damaged, no UTF-8, or has rows of unequal length
    """
    rows = _rows(path)
    if not rows:
        return TextColumns(path, None, [])
    if len({len(row) for row in rows}) > 1:
        number = next(k for k, row in enumerate(rows) if len(row) != len(rows[0]))
        raise DatasetError(f"{path} has {len(rows[number])} columns in row {number + 1} and {len(rows[0])} in the "
                           "first; expected as many throughout")
    if has_header is None:
        has_header = _has_header(rows)
    header = tuple(cell.strip() for cell in rows[0]) if has_header else None
    return TextColumns(path, header, [list(column) for column in zip(*rows[int(has_header):], strict=True)]
                       or [[] for _ in rows[0]])


def first_rows(path: Path, num_rows: int) -> list[list[str]]:
    """Return the cells of the first lines that are none of # or blanks, without reading the whole file.

    Raises
    ------
    DatasetError                   a file that is missing or damaged
    """
    with _opened(path) as stream:
        content = b""
        while b"\n" not in content and (block := stream.read(BLOCK_BYTES)):
            content += block
            if b"\n" not in content and len(content) > tables.MAX_LINE_BYTES:
                raise DatasetError(f"{path} has a line of more than {tables.MAX_LINE_BYTES >> 20} MiB; expected a row "
                                   "of numbers a line")
        if stream.read(1):
            content = content[:content.rfind(b"\n") + 1]
    lines = io.StringIO(content.decode("utf-8-sig", errors="replace"), newline="")
    return [row for row, _ in zip(_parsed(lines), range(num_rows), strict=False)]


def has_number(cells: list[str]) -> bool:
    """Tell whether some cell is a number; a header has none."""
    return any(is_number(cell.encode()) for cell in cells)


def column_values(cells: Iterable[str]) -> np.ndarray:
    """Return cells as int64 if all are whole numbers, else float64 if all are numbers or missing, else as texts."""
    texts = np.array([cell.strip() for cell in cells], dtype=str)
    if texts.size == 0:
        return np.empty(0, np.int64)
    try:
        return texts.astype(np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.where(np.isin(texts, MISSING_TEXTS), "nan", texts).astype(np.float64)
    except ValueError:
        return texts


def column_ids(cells: Iterable[str]) -> np.ndarray:
    """Return ids as int64 if each is a whole number as Python writes it, so that 007 stays a text; else as texts."""
    texts = [cell.strip() for cell in cells]
    try:
        numbers = np.array([int(text) for text in texts], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(texts, dtype=str)
    return numbers if all(map(str.__eq__, map(str, numbers.tolist()), texts)) else np.array(texts, dtype=str)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacked where it is gzipped; what goes wrong while it is read becomes a sentence."""
    check_file(path)
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            yield gzip.GzipFile(fileobj=raw) if is_gzip else raw
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist; expected a text table") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} can't be read ({error}); it is truncated or damaged") from None


def _text(path: Path) -> str:
    blocks, num_bytes = [], 0
    with _opened(path) as stream:
        while block := stream.read(BLOCK_BYTES):
            blocks.append(block)
            num_bytes += len(block)
            check_memory(str(path), f"{num_bytes / 1e9:,.1f} GB of text", num_bytes * BYTES_A_CHARACTER)
    return b"".join(blocks).decode("utf-8-sig")


def _parsed(lines: Iterable[str]) -> Iterable[list[str]]:
    kept = (line for line in lines if line.strip() and not line.lstrip().startswith("#"))
    first = next(kept, "")
    separator = next((mark for mark in ",;\t" if mark in first), None)
    every = (line for part in ([first] if first else [], kept) for line in part)
    return (line.split() for line in every) if separator is None else csv.reader(every, delimiter=separator)


def _rows(path: Path) -> list[list[str]]:
    try:
        return list(_parsed(io.StringIO(_text(path), newline="")))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} can't be read as a table ({error})") from None


def _has_header(rows: list[list[str]]) -> bool:
    if has_number(rows[0]):
        return False
    if {cell.strip().lower() for cell in rows[0]} & HEADER_WORDS:
        return True
    return len(rows) > 1 and any(all(has_number([row[place]]) for row in rows[1:]) for place in range(len(rows[0])))
