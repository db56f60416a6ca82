"""NumPy files of unknown health: members of .npz archives and .npy arrays, memory-mapped where that is possible.

What the arrays mean is decided by each source.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from hpcgnn.datasets.limits import check_file
from hpcgnn.datasets.row_files import BLOCK_BYTES, RowFile, in_pieces, keep_rows
from hpcgnn.errors import DatasetError

Result = TypeVar("Result")
LOCAL_HEADER_BYTES, NAME_LENGTH_AT = 30, 26


class Archive:
    """A .npz file opened for reading, without pickle.

    Raises
    ------
    DatasetError      a file that is missing or no archive; later, a member that is missing or damaged
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_file(path)
        try:
            self._file = np.load(path, allow_pickle=False)
        except FileNotFoundError:
            raise DatasetError(f"{path} does not exist; expected a .npz file") from None
        except Exception as error:  # A damaged archive can raise anything.
            raise DatasetError(f"{path} can't be read as a .npz archive ({error}); "
                               "it is damaged or of another format") from None
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
        """Names of the members."""
        return self._file.files

    def read(self, key: str) -> np.ndarray:
        """Return one member, in memory."""
        if key not in self:
            raise DatasetError(f"{self.path} has no array {key!r}; it holds {', '.join(self._file.files) or 'none'}")
        array = self._guarded(key, lambda: self._file[key])
        if not isinstance(array, np.ndarray):      # numpy hands out members that are no .npy file as bytes
            raise DatasetError(f"{self.path}: {key} is no array; write the archive anew with numpy.savez")
        return array

    def integers(self, key: str) -> np.ndarray:
        """Return one member that must be a vector of integers, in memory."""
        array = self.read(key)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DatasetError(f"{self.path}: {key} is {array.dtype} of shape {array.shape}; "
                               "expected a vector of integers")
        if array.dtype.kind == "u":
            # Differences of unsigned numbers never fall below zero, so a damaged array would look sound.
            if array.max(initial=0) > np.iinfo(np.int64).max:
                raise DatasetError(f"{self.path}: {key} holds {array.max()}, which is past any id or offset")
            return array.astype(np.int64)
        return array

    def integer(self, key: str) -> int:
        """Return one member that must hold a single integer."""
        array = self.read(key)
        if array.size != 1 or array.dtype.kind not in "iu":
            raise DatasetError(f"{self.path}: {key} is {array.dtype} of shape {array.shape}; expected one integer")
        return int(array.reshape(-1)[0])

    def rows(self, key: str, scratch: Path | None = None) -> np.ndarray | RowFile:
        """Return one member to be read in pieces, where it lies or, if it is compressed and there is a folder for
        that, from a file there; as an array where neither can be.
        """
        if key not in self:
            return self.read(key)
        array = self._guarded(key, lambda: self._mapped(key))
        if array is None and scratch is not None:
            array = self._guarded(key, lambda: self._unpacked(key, scratch))
        return self.read(key) if array is None else in_pieces(array)

    def integer_rows(self, key: str) -> np.ndarray | RowFile:
        """Return one member that must be a vector of integers, to be read in pieces if it is stored uncompressed; its
        checksum is compared first.
        """
        if key not in self or self._file.zip.getinfo(f"{key}.npy").compress_type != zipfile.ZIP_STORED:
            return self.integers(key)
        self._guarded(key, lambda: self._read_through(key))
        array = self.rows(key)
        return array if array.ndim == 1 and array.dtype.kind == "i" else self.integers(key)

    def _guarded(self, key: str, access: Callable[[], Result]) -> Result:
        try:
            return access()
        except DatasetError:
            raise
        except Exception as error:  # A damaged member can raise anything.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
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


def load_array(path: Path) -> np.ndarray:
    """Return a .npy array, memory-mapped copy-on-write.

    Raises
    ------
    DatasetError      a file that is missing, damaged, or holds Python objects
    """
    check_file(path)
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist; expected a .npy array") from None
    except Exception as error:  # A damaged header can raise anything.
        raise DatasetError(f"{path} can't be read as a .npy array ({error}); "
                           "it is damaged or of another format") from None
    if not isinstance(array, np.ndarray):
        raise DatasetError(f"{path} is an archive of arrays; expected a single .npy array")
    return array


def _row_blocks(member: BinaryIO, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[np.ndarray]:
    """Read an array row after row. The end of the member is read, too: there its checksum is compared."""
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
