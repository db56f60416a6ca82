"""Reads .npz and .npy files that may be damaged, and arrays on disk by rows.

A `RowFile` reads only the requested rows. Rows that a source can give only once (a text file, a compressed archive) are
kept in an unnamed file in the scratch folder.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import scipy.sparse

from hpcgnn.data.options import reading
from hpcgnn.errors import DatasetError

Result = TypeVar("Result")
LOCAL_HEADER_BYTES, NAME_LENGTH_AT = 30, 26


class Archive:
    """A .npz file opened for reading, without pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path, "a .npz file", "can't be read as a .npz archive ({}); it is damaged or of another format"):
            self._file = np.load(path, allow_pickle=False)
        if not isinstance(self._file, np.lib.npyio.NpzFile):
            raise DatasetError(f"{path} holds a single array; expected a .npz archive")
        twice = [name for name, count in Counter(self._file.zip.namelist()).items() if count > 1]
        if twice:
            self._file.close()
            raise DatasetError(f"{path} holds {twice[0]} twice, and only one can be meant; write the archive anew")

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self._file.files

    @property
    def names(self) -> list[str]:
        return self._file.files

    def read(self, key: str) -> np.ndarray:
        """One member, in memory."""
        if key not in self:
            raise DatasetError(f"{self.path} has no array {key!r}; it holds {', '.join(self._file.files) or 'none'}")
        array = self._guarded(key, lambda: self._file[key])
        if not isinstance(array, np.ndarray):      # numpy returns members that are not .npy files as bytes
            raise DatasetError(f"{self.path}: {key} is no array; write the archive anew with numpy.savez")
        return array

    def integers(self, key: str) -> np.ndarray:
        """One member that must be a vector of integers, in memory."""
        array = self.read(key)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DatasetError(f"{self.path}: {key} is {array.dtype} of shape {array.shape}; "
                               "expected a vector of integers")
        if array.dtype.kind == "u":
            # Differences of unsigned numbers are never negative, so a damaged array would look sound.
            if array.max(initial=0) > np.iinfo(np.int64).max:
                raise DatasetError(f"{self.path}: {key} holds {array.max()}, which is past any id or offset")
            return array.astype(np.int64)
        return array

    def integer(self, key: str) -> int:
        """One member that must hold a single integer."""
        array = self.read(key)
        if array.size != 1 or array.dtype.kind not in "iu":
            raise DatasetError(f"{self.path}: {key} is {array.dtype} of shape {array.shape}; expected one integer")
        return int(array.reshape(-1)[0])

    def rows(self, key: str, scratch: Path | None = None) -> np.ndarray | RowFile:
        """One member, read in pieces: from the archive, or from a scratch file if it is compressed.

        Without a scratch folder a compressed member is returned as an array.
        """
        if key not in self:
            return self.read(key)
        array = self._guarded(key, lambda: self._mapped(key))
        if array is None and scratch is not None:
            array = self._guarded(key, lambda: self._unpacked(key, scratch))
        return self.read(key) if array is None else in_pieces(array)

    def integer_rows(self, key: str) -> np.ndarray | RowFile:
        """One member that must be a vector of integers, in pieces if stored uncompressed; its checksum is checked."""
        if key not in self or self._file.zip.getinfo(f"{key}.npy").compress_type != zipfile.ZIP_STORED:
            return self.integers(key)
        self._guarded(key, lambda: self._read_through(key))
        array = self.rows(key)
        return array if array.ndim == 1 and array.dtype.kind == "i" else self.integers(key)

    def sparse(self, key: str, shape: tuple[int, int]) -> scipy.sparse.csr_matrix:
        """A matrix in CSR, float32, from the members key_indptr, key_indices and key_data (ones if it is missing)."""
        indptr, columns = self.integers(f"{key}_indptr"), self.integers(f"{key}_indices")
        values = self.read(f"{key}_data") if f"{key}_data" in self else np.ones(len(columns), dtype=np.float32)
        if values.ndim != 1 or values.dtype.kind not in "fiub":
            raise DatasetError(f"{self.path}: {key}_data is {values.dtype} of shape {values.shape}; expected a vector "
                               "of numbers")
        try:
            matrix = scipy.sparse.csr_matrix((values.astype(np.float32, copy=False), columns, indptr), shape=shape)
            matrix.check_format(full_check=True)
        except ValueError as error:
            raise DatasetError(f"{self.path} has sparse features that are inconsistent ({error}); "
                               f"expected CSR of shape {shape}") from None
        return matrix

    def _guarded(self, key: str, access: Callable[[], Result]) -> Result:
        try:
            return access()
        except DatasetError:
            raise
        except Exception as error:  # A damaged member can raise anything.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if "allow_pickle" in reason:
                raise DatasetError(f"{self.path}: {key} {OBJECTS}") from None
            raise DatasetError(f"{self.path} has a damaged array {key!r} ({reason}); copy the file again") from None

    def _read_through(self, key: str) -> None:
        with self._file.zip.open(f"{key}.npy") as member:
            while member.read(BLOCK_BYTES):
                pass

    def _unpacked(self, key: str, scratch: Path) -> RowFile | None:
        with self._file.zip.open(f"{key}.npy") as member:
            shape, fortran, dtype = _array_header(member)
            if dtype.hasobject or 0 in shape or not shape or (fortran and len(shape) > 1):
                return None
            return keep_rows(_row_blocks(member, shape, dtype), scratch, f"{key} of {self.path.name}")

    def _mapped(self, key: str) -> np.ndarray | None:
        member = self._file.zip.getinfo(f"{key}.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            return None
        with self.path.open("rb") as file:
            file.seek(member.header_offset + NAME_LENGTH_AT)
            lengths = np.frombuffer(file.read(4), dtype="<u2")
            file.seek(member.header_offset + LOCAL_HEADER_BYTES + int(lengths.sum()))
            shape, fortran, dtype = _array_header(file)
            offset = file.tell()
        if dtype.hasobject or 0 in shape:
            return None
        return np.memmap(self.path, dtype, mode="c", offset=offset, shape=shape, order="F" if fortran else "C")


NPY = b"\x93NUMPY"
OBJECTS = "holds objects of Python, which are pickles and can run code; save it by .astype(float) or .astype(str)"


def load_array(path: Path) -> np.ndarray:
    """A .npy array, memory-mapped copy-on-write."""
    with reading(path, "a .npy array", "can't be read as a .npy array ({}); it is damaged or of another format"):
        with path.open("rb") as file:
            if file.read(len(NPY)) == NPY and not file.seek(0) and _array_header(file)[2].hasobject:
                raise DatasetError(f"{path} {OBJECTS}")
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise DatasetError(f"{path} is an archive of arrays; expected a single .npy array")
    return array


def _row_blocks(member: BinaryIO, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[np.ndarray]:
    row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    step = max(1, BLOCK_BYTES // row_bytes)
    for first in range(0, shape[0], step):
        num_rows = min(step, shape[0] - first)
        held = member.read(num_rows * row_bytes)
        if len(held) < num_rows * row_bytes:
            raise ValueError("it ends before its last row")
        yield np.frombuffer(held, dtype).reshape(num_rows, *shape[1:])
    member.read(1)


def _array_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


BLOCK_BYTES = 1 << 25


class Sliced:
    """An array that is read in slices; subclasses have shape, dtype and __getitem__."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)


class RowFile(Sliced):
    """An array in a file, row after row. A slice of rows, or an array of row numbers, reads these rows.

    Parameters
    ----------
    file : BinaryIO               opened for reading; stays open as long as this object lives
    offset : int                  bytes before the first row
    shape : (num_rows, ...)
    """

    def __init__(self, file: BinaryIO, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._file, self._offset, self.shape, self.dtype = file, offset, shape, np.dtype(dtype)
        self._row_bytes = self.dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        held = os.fstat(file.fileno()).st_size
        if held < offset + shape[0] * self._row_bytes:
            raise DatasetError(f"{file.name} ends after {held} bytes, expected {offset + shape[0] * self._row_bytes}; "
                               "it is truncated, copy it again")

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        if not isinstance(rows, slice):
            return self._gather(np.asarray(rows))
        start, stop, step = rows.indices(len(self))
        return self._read(start, max(start, stop)) if step == 1 else self._gather(np.arange(start, stop, step))

    def row(self, number: int) -> RowFile:
        """One row of several dimensions, as an array in the same file."""
        return RowFile(self._file, self._offset + number * self._row_bytes, self.shape[1:], self.dtype)

    def _read(self, start: int, stop: int) -> np.ndarray:
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self._fill(_bytes_of(rows), self._offset + start * self._row_bytes)
        return rows

    def _gather(self, row: np.ndarray) -> np.ndarray:
        # A mapped file would keep every touched page in memory; one read per row keeps none, and is as fast.
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


class Column(Sliced):
    """One column of a two-dimensional RowFile, read in slices."""

    def __init__(self, table: RowFile, number: int) -> None:
        self._table, self._number = table, number
        self.shape, self.dtype = table.shape[:1], table.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._table[rows][:, self._number]


def columns(table: np.ndarray | RowFile) -> tuple[np.ndarray | Column, ...]:
    """The columns of a table, each to be read in slices."""
    if isinstance(table, RowFile):
        return tuple(Column(table, number) for number in range(table.shape[1]))
    return tuple(table.T)


def in_pieces(array: np.ndarray) -> np.ndarray | RowFile:
    """A RowFile for an array that np.memmap has just mapped completely and in C order; other arrays unchanged.

    A mapped page would count as memory of the process from its first use on.
    """
    if not (isinstance(array, np.memmap) and array.flags.c_contiguous and array.size and array.ndim):
        return array
    return RowFile(open(array.filename, "rb"), array.offset, array.shape, array.dtype)


def keep_rows(blocks: Iterable[np.ndarray], scratch: Path | None, what: str) -> np.ndarray | RowFile:
    """Join blocks of rows, in memory or in a file of the scratch folder.

    `blocks` are (num_rows, ...) arrays, at least one, with equal shapes except in the first dimension.
    """
    if scratch is None:
        return np.concatenate(list(blocks))
    blocks, num_rows = iter(blocks), 0
    with refusals(scratch, what):
        file = tempfile.TemporaryFile(dir=scratch)      # noqa: SIM115 - it is kept
    for block in blocks:
        with refusals(scratch, what):
            file.write(_bytes_of(np.ascontiguousarray(block)))
        num_rows, shape, dtype = num_rows + len(block), block.shape[1:], block.dtype
    with refusals(scratch, what):
        file.flush()
    return RowFile(file, 0, (num_rows, *shape), dtype)


@contextmanager
def refusals(scratch: Path | None, what: str) -> Iterator[None]:
    """Turn an OSError of the scratch folder into a DatasetError."""
    try:
        yield
    except OSError as reason:
        raise DatasetError(f"{what} can't be kept in {scratch}: {reason.strerror or reason}; check the space on its "
                           "disk, or choose another --out") from reason
