"""Sealed HDF5 files: written completely or not at all, and checked before their content is used.

A file starts with its seal, 512 bytes of text that name kind, format, CRC-32 and size. It is written under a temporary
name, sealed, brought to the disk and renamed.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py

from hpcgnn.errors import HpcgnnError, ShardError


class PatientFile(io.RawIOBase):
    """A file object for HDF5 that keeps the first failed write for later.

    HDF5 can crash the process at exit if a write fails under it (a full disk). So every write reports success, and the
    writer raises `failure` once HDF5 is done.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.failure: OSError | None = None
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 - closed by close()

    def write(self, data) -> int:
        """Write all of `data`, or keep the failure; returns the length of `data` either way."""
        data = memoryview(data).cast("B")
        rest = data
        try:
            while self.failure is None and len(rest):
                rest = rest[self._file.write(rest):]
        except OSError as error:
            self.failure = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return self._file.truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0

    def readinto(self, buffer) -> int:
        return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
        super().close()


SEAL_BYTES = 512   # the smallest user block that HDF5 allows
CRC_BLOCK_BYTES = 4 << 20
MAGIC = "hpcgnn"
NO_SYNC = (errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, 524)    # no fsync of this folder; 524: ENOTSUPP


@dataclass(frozen=True)
class Seal:
    """The seal of a file.

    kind : str               one word, e.g. "part", "graph", "checkpoint"
    version : int            format version of that kind
    crc : int                CRC-32 (zlib) of everything after the seal
    num_bytes : int          size of the file with its seal
    """

    kind: str
    version: int
    crc: int
    num_bytes: int

    def render(self) -> bytes:
        """The seal as the file's first SEAL_BYTES bytes."""
        lines = f"{MAGIC} {self.kind}\nformat {self.version}\ncrc32 {self.crc:08x}\nbytes {self.num_bytes}\n"
        return lines.encode("ascii").ljust(SEAL_BYTES - 1) + b"\n"


def parse_seal(block: bytes) -> Seal | None:
    """Parse a seal; None if the block differs from what `render` writes in any byte."""
    try:
        (magic, kind), (form, version), (crc_word, crc), (size_word, num_bytes) = (
            line.split(" ") for line in block.decode("ascii").split("\n")[:4])
        seal = Seal(kind, int(version), int(crc, 16), int(num_bytes))
    except ValueError:
        return None
    is_whole = (magic, form, crc_word, size_word) == (MAGIC, "format", "crc32", "bytes") and seal.render() == block
    return seal if is_whole else None


def crc_of_body(file: BinaryIO) -> int:
    file.seek(SEAL_BYTES)
    crc = 0
    while block := file.read(CRC_BLOCK_BYTES):
        crc = zlib.crc32(block, crc)
    return crc


def seal_file(file: BinaryIO, kind: str, version: int) -> None:
    crc = crc_of_body(file)
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    file.write(Seal(kind, version, crc, num_bytes).render())


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, if the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(descriptor)


Fill = Callable[[h5py.File], None]
AGAIN = "run hpcgnn preprocess again"
MAX_REASON = 160
# Exceptions of h5py, json and decoding for content that hpcgnn has not written. HpcgnnErrors pass.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def write_sealed(path: Path, kind: str, version: int, fill: Fill, error: type[HpcgnnError] = ShardError) -> None:
    """Write a sealed file under a temporary name in the same folder, and rename it when it is complete and on disk.

    `fill(file)` puts the content in. Raises `error` if the folder can't be written or the disk is full; the old file at
    `path` stays.
    """
    with _replacing(Path(path), error) as temporary, PatientFile(temporary) as file:
        _write_patiently(file, kind, version, fill)
        os.fsync(file.fileno())


@contextmanager
def _replacing(path: Path, error: type[HpcgnnError]) -> Iterator[Path]:
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as reason:
        raise error(f"{path} can't be written: {reason_of(reason)}; check the folder and the space on its disk, "
                    "then start again") from reason
    finally:
        with suppress(OSError):
            temporary.unlink()


def _write_patiently(file: Any, kind: str, version: int, fill: Fill) -> None:
    try:
        _fill_hdf5(file, fill)
        seal_file(file, kind, version)
    except Exception:
        # After a failed write HDF5 may read back what never reached the disk; the first failure is the reason.
        if file.failure is None:
            raise
    if file.failure is not None:
        raise file.failure


def _fill_hdf5(file: io.IOBase, fill: Fill) -> None:
    with h5py.File(file, "w", userblock_size=SEAL_BYTES) as content:
        fill(content)


@contextmanager
def open_sealed(path: Path, kind: str, version: int | tuple[int, ...], error: type[HpcgnnError] = ShardError,
                advice: str = AGAIN) -> Iterator[h5py.File]:
    """Check a sealed file from end to end, then open it for reading.

    `version` is one format, or all, that the caller reads. Raises `error`, ending with `advice`, for a file that is
    missing, unreadable, not sealed, of another kind or format, truncated or damaged.
    """
    checked = check_seal(path, kind, version, error, advice)
    try:
        # Nothing writes to a sealed file, and some parallel file systems refuse locks.
        with h5py.File(path, "r", locking=False) as content:
            if _identity(os.stat(path)) != checked:
                raise error(f"{path} was replaced while it was read; start again")
            yield content
    except UNREADABLE as reason:
        raise error(f"{path} is not as hpcgnn writes {kind} files ({_first_line(reason)}); {advice}") from reason
    except MemoryError as reason:
        raise error(f"{path} needs more memory than this machine gives; use more ranks or a larger machine") from reason


def check_seal(path: Path, kind: str, version: int | tuple[int, ...], error: type[HpcgnnError] = ShardError,
               advice: str = AGAIN) -> tuple[int, int]:
    """Check a sealed file as `open_sealed`; return device and inode of the file that was checked."""
    try:
        with _open_regular(path) as file:
            complaint, identity = _find_fault(file, kind, version), _identity(os.fstat(file.fileno()))
    except FileNotFoundError:
        complaint = "is missing"
    except OSError as reason:
        complaint = f"can't be read: {reason_of(reason)}"
    if complaint is not None:
        raise error(f"{path} {complaint}; {advice}")
    return identity


def _open_regular(path: Path) -> BinaryIO:
    # A pipe or a device is refused: reading it could wait for ever.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - returned
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("it is a pipe or a device, expected a file")
    return file


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _first_line(reason: Exception) -> str:
    lines = str(reason).strip().splitlines()
    return f"{type(reason).__name__}: {lines[0][:MAX_REASON]}" if lines else type(reason).__name__


def _find_fault(file: BinaryIO, kind: str, version: int | tuple[int, ...]) -> str | None:
    block = file.read(SEAL_BYTES)
    num_bytes = file.seek(0, os.SEEK_END)
    seal = parse_seal(block)
    if seal is None:
        return _unsealed(block, num_bytes)
    if seal.kind != kind:
        return f"is a {seal.kind} file, expected a {kind} file"
    versions = (version,) if isinstance(version, int) else version
    if seal.version not in versions:
        known = " and ".join(filter(None, (", ".join(map(str, versions[:-1])), str(versions[-1]))))
        return f"has format {seal.version}, this version reads {known}"
    if seal.num_bytes != num_bytes:
        state = "truncated" if num_bytes < seal.num_bytes else "damaged"
        return f"is {state}: it has {num_bytes} bytes, expected {seal.num_bytes}"
    crc = crc_of_body(file)
    if crc != seal.crc:
        return f"is damaged: its checksum is {crc:08x}, expected {seal.crc:08x}"
    return None


def _unsealed(block: bytes, num_bytes: int) -> str:
    if not block.startswith(f"{MAGIC} ".encode()):
        return "is no file of hpcgnn, or its first block is damaged"
    if num_bytes < SEAL_BYTES:
        return f"is truncated: it has {num_bytes} bytes, expected at least {SEAL_BYTES}"
    return "is damaged: its first block is not as it was written"


def reason_of(error: OSError) -> str:
    """The system's own words for an error, without path or traceback."""
    return os.strerror(error.errno) if error.errno else str(error)
