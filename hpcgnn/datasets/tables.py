"""Number tables in text files: CSV, TSV or blank-separated, plain or gzipped, read block by block.

What the columns mean is decided by each source.
"""

from __future__ import annotations

import gzip
import io
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hpcgnn.datasets.limits import check_file
from hpcgnn.datasets.options import ProgressTask, silent
from hpcgnn.datasets.row_files import RowFile, keep_rows
from hpcgnn.errors import DatasetError

BLOCK_BYTES = 1 << 25
MAX_LINE_BYTES = 1 << 26
GZIP_MAGIC = b"\x1f\x8b"
COMMENT = b"#"


def read_table(path: Path, dtype: type, progress: Callable[[str, float | None], ProgressTask] = silent,
               scratch: Path | None = None) -> np.ndarray | RowFile:
    """Read all rows of a text table. Lines that start with # and one header line are skipped.

    Parameters
    ----------
    path : Path               gzip is recognized by the content, the separator by the first line
    dtype : type              np.int64, np.float32 or np.float64
    scratch : Path or None    folder of a file that keeps the rows; None keeps them in memory

    Returns
    -------
    table : (num_rows, num_columns) dtype; (0, 0) for a file without rows

    Raises
    ------
    DatasetError              a file that is missing or truncated, a value that is no number, rows of unequal length
    """
    check_file(path)
    blocks = _row_blocks(path, dtype, progress)
    try:
        first = next(blocks, None)
        return np.empty((0, 0), dtype=dtype) if first is None else keep_rows(chain([first], blocks), scratch, path.name)
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist; expected a text table") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} can't be read ({error}); it is truncated or damaged") from None


def _row_blocks(path: Path, dtype: type,
                progress: Callable[[str, float | None], ProgressTask]) -> Iterator[np.ndarray]:
    """Rows of the table, some at a time, all of as many columns."""
    is_first, num_columns = True, None
    with path.open("rb") as raw:
        task = progress(f"reading {path.name}", path.stat().st_size)
        for lines in _line_blocks(raw, task, path):
            block = _parse(lines, dtype, path, is_first)
            is_first = False
            if len(block) == 0:
                continue
            if num_columns not in (None, block.shape[1]):
                raise DatasetError(f"{path} has rows of unequal length; expected {num_columns} columns throughout")
            num_columns = block.shape[1]
            yield block


def _line_blocks(raw: BinaryIO, task: ProgressTask, path: Path) -> Iterator[bytes]:
    """Whole lines, about BLOCK_BYTES at a time; progress counts bytes of the file as stored."""
    is_gzip = raw.read(2) == GZIP_MAGIC
    raw.seek(0)
    stream = gzip.GzipFile(fileobj=raw) if is_gzip else raw
    rest, done = b"", 0
    while block := stream.read(BLOCK_BYTES):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield rest + block[:cut]
            rest = block[cut:]
        else:
            rest += block
            if len(rest) > MAX_LINE_BYTES:
                raise DatasetError(f"{path} has a line of more than {MAX_LINE_BYTES >> 20} MiB; expected a row of "
                                   "numbers a line")
        task.advance(raw.tell() - done)
        done = raw.tell()
    if rest:
        yield rest


def _parse(lines: bytes, dtype: type, path: Path, is_first: bool) -> np.ndarray:
    # At once, since looking at each of millions of empty lines takes minutes.
    lines = lines.lstrip(b"\r\n")
    if is_first:
        lines = _without_header(lines)
    first = next((line for line in lines.splitlines() if line.strip() and not line.lstrip().startswith(COMMENT)), b"")
    if not first:
        return np.empty((0, 0), dtype=dtype)
    try:
        with warnings.catch_warnings():
            # NumPy would otherwise read 1.5 as the integer 1.
            warnings.simplefilter("error", DeprecationWarning)
            return np.loadtxt(io.StringIO(lines.decode("utf-8")), dtype=dtype, delimiter=_separator(first), ndmin=2)
    except (ValueError, OverflowError, DeprecationWarning) as error:
        kind = "whole numbers" if np.issubdtype(dtype, np.integer) else "numbers"
        raise DatasetError(f"{path} can't be read as a table: {str(error).rstrip('.')}; expected {kind} only") from None


def _separator(line: bytes) -> str | None:
    """Comma, tab, or None for any run of blanks."""
    return "," if b"," in line else "\t" if b"\t" in line else None


def _without_header(lines: bytes) -> bytes:
    start = 0
    while start < len(lines):
        end = lines.find(b"\n", start) + 1 or len(lines)
        line = lines[start:end].strip()
        if line and not line.startswith(COMMENT):
            return lines[start:] if _is_numeric(line) else lines[end:]
        start = end
    return b""


def _is_numeric(line: bytes) -> bool:
    """Tell whether some field of the line is a number; a header has none."""
    return any(is_number(field) for field in re.split(rb"[,\t ]+", line))


def is_number(field: bytes) -> bool:
    """Tell whether a cell of a text table is a number."""
    try:
        float(field)
    except ValueError:
        return False
    return True
