"""RowFile: an array in a file, of which only the rows that are asked for are ever in memory.

Arrays that their source can't give in pieces a second time are kept in nameless files of a scratch folder. What the
rows mean is not known here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hpcgnn.errors import DatasetError

BLOCK_BYTES = 1 << 25


class RowFile:
    """An array in a file that lies there row after row. A slice of rows, or an array of row numbers, reads these rows.

    Parameters
    ----------
    file : BinaryIO               opened for reading; it stays open as long as this object lives
    offset : int                  bytes before the first row
    shape : (num_rows, ...)
    dtype

    Raises
    ------
    DatasetError                  the file is too short for the array
    """

    def __init__(self, file: BinaryIO, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._file, self._offset, self.shape, self.dtype = file, offset, shape, np.dtype(dtype)
        self._row_bytes = self.dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        held = os.fstat(file.fileno()).st_size
        if held < offset + shape[0] * self._row_bytes:
            raise DatasetError(f"{file.name} ends after {held} bytes, expected {offset + shape[0] * self._row_bytes}; "
                               "it is truncated, copy it again")

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        if not isinstance(rows, slice):
            return self._gather(np.asarray(rows))
        start, stop, step = rows.indices(len(self))
        return self._read(start, max(start, stop)) if step == 1 else self._gather(np.arange(start, stop, step))

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self._read(0, len(self)).astype(self.dtype if dtype is None else dtype, copy=False)

    def row(self, number: int) -> RowFile:
        """Return one row of several dimensions as an array of its own in the same file."""
        return RowFile(self._file, self._offset + number * self._row_bytes, self.shape[1:], self.dtype)

    def _read(self, start: int, stop: int) -> np.ndarray:
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self._fill(_bytes_of(rows), self._offset + start * self._row_bytes)
        return rows

    def _gather(self, row: np.ndarray) -> np.ndarray:
        # A mapped file would keep every page that was touched; one read a row keeps none, and takes as long.
        rows = np.empty((len(row), *self.shape[1:]), self.dtype)
        memory, size, order, descriptor = _bytes_of(rows), self._row_bytes, np.argsort(row), self._file.fileno()
        for place, number in zip((order * size).tolist(), row[order].tolist(), strict=True):
            piece, offset = memory[place:place + size], self._offset + number * size
            if os.preadv(descriptor, (piece,), offset) < size:     # at the end of a file, or after a signal
                self._fill(piece, offset)
        return rows

    def _fill(self, memory: memoryview, offset: int) -> None:
        while len(memory):
            done = os.preadv(self._file.fileno(), (memory,), offset)
            if done == 0:
                raise OSError(f"{self._file.name} became shorter while it was read")
            memory, offset = memory[done:], offset + done


def _bytes_of(rows: np.ndarray) -> memoryview:
    return memoryview(rows.reshape(-1).view(np.uint8))


class Column:
    """One column of a RowFile of two dimensions, as an array of one that is read in slices."""

    def __init__(self, table: RowFile, number: int) -> None:
        self._table, self._number = table, number
        self.shape, self.dtype, self.ndim = table.shape[:1], table.dtype, 1

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._table[rows][:, self._number]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)


def columns(table: np.ndarray | RowFile) -> tuple[np.ndarray | Column, ...]:
    """Return the columns of a table, each to be read in slices."""
    if isinstance(table, RowFile):
        return tuple(Column(table, number) for number in range(table.shape[1]))
    return tuple(table.T)


def in_pieces(array: np.ndarray) -> np.ndarray | RowFile:
    """Return what reads rows of an array that np.memmap has just mapped, whole and in C order; others stay as they are.

    A mapped page counts as memory of the process from its first use on.
    """
    if not (isinstance(array, np.memmap) and array.flags.c_contiguous and array.size and array.ndim):
        return array
    return RowFile(open(array.filename, "rb"), array.offset, array.shape, array.dtype)


def keep_rows(blocks: Iterable[np.ndarray], scratch: Path | None, what: str) -> np.ndarray | RowFile:
    """Join blocks of rows, in memory or, where there is a folder for that, in a file.

    Parameters
    ----------
    blocks : iterable of (num_rows, ...), at least one, equal but for their first dimension
    scratch : Path or None        folder of the file, which has no name and goes with the process
    what : str                    what is kept, for a sentence

    Raises
    ------
    DatasetError                  the folder has no room
    """
    if scratch is None:
        return np.concatenate(list(blocks))
    blocks, num_rows = iter(blocks), 0
    file = scratch_file(scratch, what)
    for block in blocks:
        with refusals(scratch, what):
            file.write(_bytes_of(np.ascontiguousarray(block)))
        num_rows, shape, dtype = num_rows + len(block), block.shape[1:], block.dtype
    with refusals(scratch, what):
        file.flush()
    return RowFile(file, 0, (num_rows, *shape), dtype)


def scratch_file(scratch: Path, what: str) -> BinaryIO:
    """Return a file to write and read that has no name. Raises DatasetError where the folder can't have one."""
    with refusals(scratch, what):
        return tempfile.TemporaryFile(dir=scratch)


@contextmanager
def refusals(scratch: Path | None, what: str) -> Iterator[None]:
    """Say in a DatasetError that a folder could not keep something."""
    try:
        yield
    except OSError as reason:
        raise DatasetError(f"{what} can't be kept in {scratch}: {reason.strerror or reason}; check the space on its "
                           "disk, or choose another --out") from reason
