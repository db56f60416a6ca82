"""TextTable: rows of a text file, or of several alike, as columns of texts, a block of rows at a time.

The first lines show how columns are separated and whether the first line names them. All rows, and the column's
purpose, decide its type: ids are whole numbers only if every one is written as Python would write it, so that 007 and
1e3 stay texts and no id passes through a floating-point number.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from hpcgnn.data import text_stream
from hpcgnn.data.arrays import RowFile, keep_rows
from hpcgnn.data.columns import COMMAS, MISSING_TEXTS, Ids, is_number, texts_of
from hpcgnn.data.options import Progress, ProgressTask, check_memory, silent
from hpcgnn.data.text_stream import (
    MATRIX_MARKET,
    TextStream,
    keys_of,
    parts_of,
    with_single_blanks,
    without_blank_lines,
)
from hpcgnn.errors import DatasetError

# First cells that name a column; no node is called like this.
HEADER_WORDS = frozenset((
    "id", "node", "node_id", "nodeid", "name", "key", "vertex", "vertex_id", "index", "source", "target", "src", "dst",
    "from", "to", "source_id", "target_id", "weight", "label", "labels", "class", "split", "role", "feature", "y"))
# Two first cells that name columns together; a node may be called like one of them.
HEADER_PAIRS = {"head", "tail"}, {"subject", "object"}
SEPARATORS = "\t;|,"
SAMPLE_BYTES, SAMPLE_ROWS, MAX_SHOWN = 1 << 18, 1000, 60
INTEGER, NUMBER, TEXT = "integer", "number", "text"
ROW_ERROR = re.compile(r"CSV parse error: (?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
WHOLE = re.compile(r"0|-?[1-9][0-9]*")
TRUTHS = ("true", "false", "yes", "no")


class CellError(DatasetError):
    """A cell that does not fit its column's type: `column` is its index in the file, `text` its content, if known."""

    def __init__(self, column: int, message: str, text: str = "") -> None:
        super().__init__(message)
        self.column, self.text = column, text


@dataclass(frozen=True)
class Layout:
    """The layout of a file, from its first lines.

    separator : str                one character; a blank stands for any run of blanks
    header : tuple of str or None  names of the columns, None if the first line is data
    num_columns : int              cells per row, including a last one that is empty in all rows
    has_tail : bool                each row ends in a separator
    size : tuple of int or None    rows, columns and entries that a Matrix Market file states before its entries
    """

    separator: str
    header: tuple[str, ...] | None
    num_columns: int
    first: tuple[str, ...]
    has_tail: bool = False
    size: tuple[int, ...] | None = None


class TextTable:
    """A table in text files; its rows can be read several times.

    Parameters
    ----------
    path : Path                    a file, a folder or a pattern; each file has the header of the first
    has_header : bool or None      None: a first line of texts is a header if a column of numbers follows, or if it
                                   holds a usual name such as id, source or label

    Attributes
    ----------
    num_columns : int              0 for a file without rows or header
    file : Path                    the file being read, or read last
    first : tuple of str           cells of the first row of data
    size : tuple of int or None    stated by a Matrix Market file
    comments : list of str         the first skipped lines
    keys : tuple of str            columns in the names of folders, as in year=2020/part-0.csv
    """

    def __init__(self, path: Path, has_header: bool | None = None,
                 progress: Progress = silent) -> None:
        self.path, self._progress = path, progress
        self._files = parts_of(path, "a text table")
        self._has_header = has_header
        self._num_comments: dict[Path, int] = {}
        self._keys = {file: keys_of(file, path) for file in self._files}
        self.keys = tuple(self._keys[self._files[0]])
        for file in self._files:
            rows = _FileRows(file, has_header)
            if rows.layout.num_columns:
                break
        self._layout = layout = rows.layout
        self.first, self.size, self.comments = layout.first, layout.size, rows.stream.comments
        self.num_columns = layout.num_columns - layout.has_tail
        self.header = None if layout.header is None else layout.header[:self.num_columns]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on the decisions about the first line and about several files."""
        name = self.path.name
        if self.header is None:
            said = [f"{name} has no header"]
        else:
            said = [f"the first line of {name} is its header: {','.join(self.header)[:MAX_SHOWN]}"]
        if len(self._files) > 1:
            said.append(f"{name} stands for {len(self._files)} files, {self._files[0].name} to {self._files[-1].name}")
        return tuple(said)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Lines that were left out and why; complete once all rows have been read."""
        number = sum(self._num_comments.values())
        if not number:
            return ()
        shown = f", {self.comments[0][:MAX_SHOWN]!r} first" if self.comments else ""
        return (f"{number} {'line' if number == 1 else 'lines'} of {self.path.name} after # or %, as comments{shown}",)

    @property
    def num_unnamed(self) -> int:
        """Number of leading columns without a name, such as the index of a pandas DataFrame."""
        return 0 if self.header is None else next(
            (place for place, name in enumerate(self.header) if name and not name.lower().startswith("unnamed:")), 0)

    def blocks(self, places: Sequence[int]) -> Iterator[list[pa.Array]]:
        """Read the columns of some ascending indices as texts, block by block; `keys` follow all columns."""
        total = sum(file.stat().st_size for file in self._files)
        task = self._progress(f"reading {self.path.name}", total)
        own = [place for place in places if place < self.num_columns]
        for file in self._files:
            self.file = file
            rows = _FileRows(file, self._has_header, task)
            if rows.layout.num_columns == 0:
                rows.finish()
            elif (rows.layout.header, rows.layout.num_columns) != (self._layout.header, self._layout.num_columns):
                raise DatasetError(f"{file} has {_described(rows.layout)}, and {self._files[0].name} before it "
                                   f"has {_described(self._layout)}; expected the same in all files of "
                                   f"{self.path.name}")
            else:
                values = list(self._keys[file].values())
                for columns in rows.blocks(own):
                    yield columns + [pa.repeat(pa.scalar(values[place - self.num_columns], pa.large_string()),
                                               len(columns[0])) for place in places[len(own):]]
            self._num_comments[file] = rows.stream.num_comments

    def cell_error(self, place: int, text: str, row: int) -> CellError:
        """The error for a cell that is not a number; `row` counts from 0 in `file`, without the header."""
        name = repr(self.header[place]) if self.header else str(place)
        hint = ", with a point before decimals and nothing between thousands" if COMMAS.fullmatch(text) else ""
        number = row + 1 + (self.header is not None)
        return CellError(place, f"{self.file} has {text[:MAX_SHOWN]!r} in column {name} of row {number}; expected "
                         f"numbers, or leave the column out{hint}", text)


def _described(layout: Layout) -> str:
    if layout.header is None:
        return f"no header and {layout.num_columns} columns"
    return f"the header {','.join(layout.header)[:MAX_SHOWN]!r}"


class _FileRows:
    """Rows of one file; its first lines are read at once, the rest by `blocks`."""

    def __init__(self, file: Path, has_header: bool | None, task: ProgressTask | None = None) -> None:
        self.file, self.stream = file, TextStream(file, task)
        self._lines = self.stream.blocks()
        start, size = [], 0
        for block in self._lines:
            start.append(block)
            size += len(block)
            if size >= SAMPLE_BYTES:
                break
        self._start = b"".join(start)
        self.layout = self._sniffed(has_header)

    def finish(self) -> None:
        for _ in self._lines:
            pass

    def _sniffed(self, has_header: bool | None) -> Layout:
        sample = self._start[:SAMPLE_BYTES]
        sample = sample[:sample.rfind(b"\n") + 1] or self._start[:self._start.find(b"\n") + 1]
        rows, separator = _split(self._text(sample), self.file)
        held = self._data_in_head(rows, separator)
        if held and rows is not None:
            self._start = b"".join(held) + self._start
            rows, separator = _split(self._text(b"".join(held) + sample), self.file)
        if not rows:
            return Layout(",", None, 0, ())
        if self.stream.comments and self.stream.comments[0].lower().encode().startswith(MATRIX_MARKET):
            return self._matrix_market(rows)
        is_header = _is_header(rows) if has_header is None else has_header
        header = tuple(cell.strip() for cell in rows[0]) if is_header else None
        body = rows[1:] if is_header else rows
        num_columns = len(body[0]) if body else len(header)
        has_tail = num_columns > 1 and all(len(row) == num_columns and not row[-1] for row in body[:SAMPLE_ROWS]) and (
            header is None or len(header) < num_columns or not header[-1]) and bool(body)
        if header is not None and len(header) != num_columns:
            header = _fitted(header, num_columns, has_tail, self.file)
        first = tuple(cell.strip() for cell in body[0])[:num_columns - has_tail] if body else ()
        return Layout(separator, header, num_columns, first, has_tail)

    def _matrix_market(self, rows: list[list[str]]) -> Layout:
        # The first line of data states rows, columns and entries; it is taken off.
        self._start = self._start[_end_of_row(self._start):]
        try:
            size = tuple(map(int, rows[0]))
        except ValueError:
            raise DatasetError(f"{self.file} begins as a Matrix Market file and has {' '.join(rows[0])[:MAX_SHOWN]!r} "
                               "where it says its size; expected rows, columns and entries") from None
        return Layout(" ", None, len(rows[1]) if len(rows) > 1 else 2, tuple(rows[1]) if len(rows) > 1 else (),
                      size=size)

    def _text(self, lines: bytes) -> str:
        try:
            return lines.decode()
        except UnicodeDecodeError as error:
            raise _no_utf8(self.file, error.object[error.start:error.start + 1]) from None

    def _data_in_head(self, rows: list[list[str]], separator: str) -> list[bytes]:
        # Returns lines before the data that are data themselves, such as `#ml,u7`; counts the others as comments.
        head, self.stream.head = self.stream.head, []
        if not head:
            return []
        cells = [next(csv.reader([self._text(line).strip()], delimiter=separator)) if separator != " "
                 else self._text(line).split() for line in head]
        width = len(rows[0]) if rows else max(map(len, cells))
        fits = [len(row) == width > 1 for row in cells]
        body = rows[1:] if rows and _is_header(rows) else rows
        words = {cell.strip().lower().lstrip("#%") for cell in cells[-1]}
        if (rows and (_is_header(rows) or all(_is_integer(row[0]) for row in body))) or words & HEADER_WORDS:
            fits = [False] * len(head)
        elif rows and sum(fits) == 1 and not any(cell[:1] in ("#", "%") for row in rows for cell in row):
            raise DatasetError(f"{self.file} begins with the line {self._text(head[0]).strip()[:MAX_SHOWN]!r}, which "
                               "may be a comment or a row; remove it, put quotation marks around its first "
                               "cell, or put a line of column names before it")
        for line, is_data in zip(head, fits, strict=True):
            if not is_data:
                self.stream.skip(line)
        return [line for line, is_data in zip(head, fits, strict=True) if is_data]

    def blocks(self, places: list[int]) -> Iterator[list[pa.Array]]:
        layout = self.layout
        wanted = [str(place) for place in (*places, *([layout.num_columns - 1] if layout.has_tail else []))]
        block_bytes = text_stream.BLOCK_BYTES + 2 * text_stream.MAX_LINE_BYTES
        try:
            reader = arrow_csv.open_csv(
                pa.PythonFile(_Readable(self._clean()), "r"),
                # One thread, so that rows can be counted for error messages.
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, block_size=min(block_bytes, (1 << 31) - 1), skip_rows_after_names=0,
                    column_names=[str(place) for place in range(layout.num_columns)]),
                parse_options=arrow_csv.ParseOptions(delimiter=layout.separator, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, pa.large_string()), include_columns=wanted))
            for batch in reader:
                columns = list(batch.columns)
                if layout.has_tail and pc.any(pc.not_equal(pc.utf8_trim_whitespace(columns.pop()), "")).as_py():
                    raise DatasetError(f"{self.file} has rows that end in a separator and others with "
                                       f"{layout.num_columns} columns; expected as many throughout")
                yield columns
        except pa.ArrowInvalid as error:
            if str(error) != "Empty CSV file":
                raise self._explained(error) from None

    def _clean(self) -> Iterator[bytes]:
        layout = self.layout
        is_first = layout.header is not None
        for lines in chain([self._start], self._lines):
            lines = with_single_blanks(lines) if layout.separator == " " else without_blank_lines(lines)
            if is_first:
                lines = lines.lstrip(b"\n")
                row = next(csv.reader(io.StringIO(lines[:SAMPLE_BYTES].decode(errors="replace"), newline=""),
                                      delimiter=layout.separator), None)
                if row is None:
                    continue
                lines = lines[_end_of_row(lines):]
                is_first = False
            if layout.num_columns == 1 and b"\n\n" in lines.strip(b"\n"):
                raise DatasetError(f"{self.file} has empty lines between its values; write NaN where one is unknown")
            if lines:
                yield lines
        self._start = b""

    def _explained(self, error: Exception) -> DatasetError:
        text = str(error)
        if "UTF8" in text:
            return _no_utf8(self.file)
        if found := ROW_ERROR.match(text):
            row = int(found[1] or 0) + (self.layout.header is not None)
            return DatasetError(f"{self.file} has {found[3]} columns in row {row} and {found[2]} in the first; "
                                "expected as many throughout")
        if "straddl" in text:
            return DatasetError(f"{self.file} has a row of more than {text_stream.MAX_LINE_BYTES >> 20} MiB, or a "
                                "quotation mark that is never closed; expected one row per line")
        return DatasetError(f"{self.file} can't be read as a table ({text.splitlines()[0]})")


def _no_utf8(file: Path, byte: bytes = b"") -> DatasetError:
    shown = f" (byte {byte[0]:#x})" if byte else ""
    return DatasetError(f"{file} holds letters that are not in UTF-8{shown}; convert it, for example by "
                        "iconv -f LATIN1 -t UTF-8")


class _Readable(io.RawIOBase):
    """Blocks as the file that Arrow's reader takes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        return True

    def read(self, num_bytes: int = -1) -> bytes:
        block = self._rest or next(self._blocks, b"")
        cut = len(block) if num_bytes < 0 else num_bytes
        self._rest = block[cut:]
        return block[:cut]


def _end_of_row(lines: bytes) -> int:
    end = lines.find(b"\n") + 1
    while end and lines.count(b'"', 0, end) % 2:
        end = lines.find(b"\n", end) + 1
    return end or len(lines)


def _split(text: str, file: Path) -> tuple[list[list[str]], str]:
    # Returns the rows of a sample and their separator: the first mark that all rows have equally often.
    lines = [line for line in text.split("\n") if line.strip()][:SAMPLE_ROWS]
    if not lines:
        return [], ","
    # At first the header counts, too: `id,label` above rows such as `1,a;b` has no semicolon.
    for skipped, mark in product((0, 1), SEPARATORS):
        if mark in lines[0] or mark in lines[-1]:
            rows = _parsed(text, mark, file)
            if len({len(row) for row in rows[skipped:] or rows}) == 1 and len(rows[-1]) > 1 and not (
                    mark == "\t" and _is_by_blanks(rows)):
                return rows, mark
    mark = next((mark for mark in ",;\t|" if mark in lines[0] and not (mark == "\t" and _is_by_blanks(
        _parsed(text, mark, file)))), None)
    if mark is not None:
        return _parsed(text, mark, file), mark
    rows = _parsed(with_single_blanks(text.encode()).decode(), " ", file)
    if len({len(row) for row in rows}) > 2 and not all(is_number(cell) for row in rows[1:] for cell in row):
        return [[line] for line in lines], "\t"      # names of several words
    return rows, " "


def _is_by_blanks(rows: list[list[str]]) -> bool:
    return any(" " in cell.strip() for row in rows for cell in row) and all(
        is_number(cell) for row in rows for between in row for cell in between.split())


def _parsed(text: str, separator: str, file: Path) -> list[list[str]]:
    rows = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            if row and (len(row) > 1 or row[0].strip()):
                rows.append(row)
            if len(rows) >= SAMPLE_ROWS:
                break
    except csv.Error as error:
        raise DatasetError(f"{file} can't be read as a table ({error})") from None
    return rows


def _fitted(header: tuple[str, ...], num_columns: int, has_tail: bool, file: Path) -> tuple[str, ...]:
    if len(header) == num_columns + 1 and not header[-1]:
        return header[:-1]
    if len(header) == num_columns - 1:
        return (*header, "") if has_tail else ("", *header)     # R gives the column of row names no header
    raise DatasetError(f"{file} has {num_columns} columns in row 2 and {len(header)} in the first; expected as many "
                       "throughout")


def _is_header(rows: list[list[str]]) -> bool:
    first, body = rows[0], rows[1:]
    names = [cell.strip().lower() for cell in first]
    if not names[0] and len(names) > 1 and names[1:] == [str(place) for place in range(len(names) - 1)]:
        return True     # pandas writes this header for columns without names, after the index
    numbers = [name for name in names if is_number(name)]
    if numbers and names[0] in HEADER_WORDS and numbers == [str(place) for place in range(len(numbers))]:
        return True
    if numbers:
        return bool(set(names) & HEADER_WORDS) and bool(body) and all(
            len(row) == len(first) and is_number(row[place]) for row in body
            for place, name in enumerate(names) if name in HEADER_WORDS)
    if set(names) & HEADER_WORDS or any(pair <= set(names) for pair in HEADER_PAIRS):
        return True
    columns = [[row[place].strip() for row in body if place < len(row)] for place in range(len(first))]
    return any(not is_like_number(cell.strip()) and len(column) == len(body) and all(map(is_like_number, column))
               and set(column) - set(MISSING_TEXTS) for cell, column in zip(first, columns, strict=True) if column)


def is_like_number(cell: str) -> bool:
    """Whether a cell is a number (perhaps with commas), a truth value or missing; none of these is a name."""
    return is_number(cell) or cell in MISSING_TEXTS or cell.lower() in TRUTHS or bool(COMMAS.fullmatch(cell))


def is_whole_number(cell: str) -> bool:
    """Whether a cell is a whole number as Python writes it, of 64 bits."""
    return bool(WHOLE.fullmatch(cell)) and -(1 << 63) <= int(cell) < 1 << 63


def _is_integer(cell: str) -> bool:
    return cell.strip().lstrip("-").isdecimal()


def _strings(texts: list[str]) -> Any:
    return pa.array(texts, pa.large_string())


def numbers_of(column: pa.Array, has_truths: bool = False) -> np.ndarray | None:
    """A column of texts as float64, NaN if missing ('', NaN, NA, None, null); None if one is no number.

    `has_truths`: true and false, yes and no count as 1 and 0 if all cells are truth values.
    """
    with suppress(pa.ArrowInvalid):
        return numpy_of(pc.cast(column, pa.float64()))
    column = pc.utf8_trim_whitespace(column)
    is_missing = pc.is_in(column, value_set=_strings(list(MISSING_TEXTS)))
    if has_truths:
        lower = pc.utf8_lower(column)
        is_truth = pc.is_in(lower, value_set=_strings(list(TRUTHS)))
        if len(column) and pc.all(pc.or_(is_truth, is_missing)).as_py() and pc.any(is_truth).as_py():
            column = pc.if_else(pc.is_in(lower, value_set=_strings(["true", "yes"])), "1", "0")
    with suppress(pa.ArrowInvalid):
        return numpy_of(pc.cast(pc.if_else(is_missing, "nan", column), pa.float64()))
    return None


def whole_numbers_of(column: pa.Array) -> np.ndarray | None:
    """A column of texts as int64 if all are whole numbers as Python writes them, else None."""
    for cells in (column, pc.utf8_trim_whitespace(column)):
        with suppress(pa.ArrowInvalid):
            numbers = pc.cast(cells, pa.int64())
            if pc.cast(numbers, cells.type).equals(cells):
                return numpy_of(numbers)
    return None


def checked_ids(ids: Ids, path: Path) -> Ids:
    """The ids, unchanged."""
    if not isinstance(ids, pa.Array):
        return ids
    if pc.any(is_long := pc.match_substring(ids, "\n")).as_py():
        text = ids.filter(is_long)[0].as_py()
        raise DatasetError(f"{path} has an id of several lines, {text[:MAX_SHOWN]!r}; a quotation mark may be missing, "
                           "or one too many")
    is_missing = pc.is_in(ids, value_set=_strings(list(MISSING_TEXTS)))
    others = ids.filter(pc.invert(is_missing)) if pc.any(is_missing).as_py() else ids[:0]
    if len(others) and whole_numbers_of(others) is not None:
        text = ids.filter(is_missing)[0].as_py()
        raise DatasetError(f"{path} has {text!r} where a node's id should be, and numbers in all other rows; expected "
                           "an id in each row")
    return ids


def read_columns(table: TextTable, purposes: list[str | None]) -> list[np.ndarray | pa.LargeStringArray]:
    """Read whole columns: ids (INTEGER), numbers or else texts (NUMBER), or texts (TEXT); None leaves one out.

    Per requested column, returns (num_rows,) int64, (num_rows,) float64, or an Arrow array of strings.
    """
    wanted = [place for place, purpose in enumerate(purposes) if purpose is not None]
    blocks: list[list] = [[] for _ in wanted]
    num_bytes = 0
    for columns in table.blocks(wanted):
        for place, column, kept in zip(wanted, columns, blocks, strict=True):
            # If a later block holds a text, whole numbers can become the same texts again.
            whole = whole_numbers_of(column) if purposes[place] == INTEGER else None
            kept.append(pc.utf8_trim_whitespace(column) if whole is None else whole)
            num_bytes += kept[-1].nbytes
        check_memory(str(table.file), f"{num_bytes / 1e9:,.1f} GB of text", num_bytes)
    return [_joined(kept, purposes[place]) for place, kept in zip(wanted, blocks, strict=True)]


def _joined(blocks: list, purpose: str | None) -> np.ndarray | pa.LargeStringArray:
    if purpose == INTEGER and all(isinstance(block, np.ndarray) for block in blocks):
        return np.concatenate(blocks) if blocks else np.empty(0, np.int64)
    texts = [texts_of(block) for block in blocks]
    texts = pa.concat_arrays(texts) if texts else _strings([])
    numbers = numbers_of(texts) if purpose == NUMBER else None
    return texts if numbers is None else numbers


def read_matrix(table: TextTable, dtype: type, scratch: Path | None = None, first: int = 0) -> np.ndarray | RowFile:
    """Read the columns from `first` on as numbers, block by block.

    Parameters
    ----------
    dtype : type              np.int64, np.float32 or np.float64
    scratch : Path or None    folder of a file for the rows; None keeps them in memory

    Returns
    -------
    matrix : (num_rows, num_columns - first) dtype; (0, 0) for a file without rows

    Raises CellError for a cell that is no number.
    """
    is_whole, places = np.issubdtype(dtype, np.integer), range(first, table.num_columns)

    def blocks() -> Iterator[np.ndarray]:
        file, num_before = None, 0
        for columns in table.blocks(places):
            file, num_before = table.file, num_before if table.file == file else 0
            rows = np.empty((len(columns[0]), len(columns)), dtype)
            for place, column in enumerate(columns):
                numbers = whole_numbers_of(column) if is_whole else numbers_of(column, has_truths=True)
                if numbers is None:
                    row, text = next(
                        (row, text) for row, text in enumerate(pc.utf8_trim_whitespace(column).to_pylist())
                        if not (is_whole_number(text) if is_whole else is_number(text) or text in MISSING_TEXTS))
                    raise table.cell_error(first + place, text, num_before + row)
                rows[:, place] = numbers
            num_before += len(rows)
            yield rows

    found = blocks()
    start = next(found, None)
    return np.empty((0, 0), dtype) if start is None else keep_rows(chain([start], found), scratch, table.path.name)


def numpy_of(column: pa.Array) -> np.ndarray:
    """A column of numbers, all known, as a NumPy array; Arrow's own conversion would import pandas."""
    dtype = np.int64 if column.type == pa.int64() else np.float64
    return np.frombuffer(column.buffers()[1] or b"", dtype)[column.offset:column.offset + len(column)]
