"""Sealed HDF5 files: written whole or not at all, checked before a byte of them is believed.

What such a file holds is not known here.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import h5py

from hpcgnn.errors import HpcgnnError, ShardError
from hpcgnn.shards.patient_file import PatientFile
from hpcgnn.shards.seal import MAGIC, SEAL_BYTES, crc_of_body, parse_seal, seal_file, sync_folder

Fill = Callable[[h5py.File], None]
AGAIN = "run hpcgnn preprocess again"
MAX_REASON = 160
# What h5py, json and decoding raise on content that no program of ours has written. HpcgnnErrors pass.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def write_sealed(path: Path, kind: str, version: int, fill: Fill, error: type[HpcgnnError] = ShardError) -> None:
    """Write a sealed file under a temporary name beside `path` and rename it when it is complete and on disk.

    Parameters
    ----------
    fill : callable(h5py.File)        puts the content in; memory: what it holds at a time

    Raises
    ------
    error                     the folder can't be written or the disk is full; what was at `path` is still there
    """
    with _replacing(Path(path), error) as temporary, PatientFile(temporary) as file:
        _write_patiently(file, kind, version, fill)
        os.fsync(file.fileno())


@contextmanager
def _replacing(path: Path, error: type[HpcgnnError]) -> Iterator[Path]:
    """Give a temporary name to write to; after success it takes the place of `path`, after a failure it is gone."""
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


def _write_patiently(file: PatientFile, kind: str, version: int, fill: Fill) -> None:
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

    Parameters
    ----------
    version : int or tuple    format, or formats, that the caller reads
    advice : str              what to do about a file that does not fit; ends the sentence

    Raises
    ------
    error                     missing, unreadable, not sealed, of another kind or format, truncated or damaged
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
    """Check kind, format, size and checksum of a sealed file; parameters and errors as of open_sealed.

    Returns
    -------
    identity : (int, int)     device and inode of the file that was checked
    """
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
    """Open a file for reading; a pipe or a device, at which a reader could wait for ever, raises OSError."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - returned
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("it is a pipe or a device, expected a file")
    return file


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _first_line(reason: Exception) -> str:
    """Say why something could not be read, short enough for a sentence."""
    lines = str(reason).strip().splitlines()
    return f"{type(reason).__name__}: {lines[0][:MAX_REASON]}" if lines else type(reason).__name__


def _find_fault(file: BinaryIO, kind: str, version: int | tuple[int, ...]) -> str | None:
    """Say what is wrong with a file, as the rest of a sentence that starts with its name; None where nothing is."""
    block = file.read(SEAL_BYTES)
    num_bytes = file.seek(0, os.SEEK_END)
    seal = parse_seal(block)
    if seal is None:
        return _unsealed(block, num_bytes)
    if seal.kind != kind:
        return f"is a {seal.kind} file, expected a {kind} file"
    versions = (version,) if isinstance(version, int) else version
    if seal.version not in versions:
        return f"has format {seal.version}, this version reads {' and '.join(map(str, versions))}"
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
    """Return the system's own words for an error, without path or traceback."""
    return os.strerror(error.errno) if error.errno else str(error)
