"""The seal of a file: its first 512 bytes, plain text that names kind, format, checksum and size. No HDF5 in here."""

from __future__ import annotations

import errno
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

SEAL_BYTES = 512   # the smallest user block that HDF5 allows
CRC_BLOCK_BYTES = 4 << 20
MAGIC = "hpcgnn"
NO_SYNC = (errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, 524)    # of a folder; 524 is ENOTSUPP of the kernel


@dataclass(frozen=True)
class Seal:
    """Hold what a sealed file says of itself.

    Attributes
    ----------
    kind : str               one word, e.g. "part", "graph", "checkpoint"
    version : int            format version of that kind
    crc : int                CRC-32 (zlib) of everything after the seal
    num_bytes : int          size of the file, the seal included
    """

    kind: str
    version: int
    crc: int
    num_bytes: int

    def render(self) -> bytes:
        """Return the 512 bytes that stand at the start of the file."""
        lines = f"{MAGIC} {self.kind}\nformat {self.version}\ncrc32 {self.crc:08x}\nbytes {self.num_bytes}\n"
        return lines.encode("ascii").ljust(SEAL_BYTES - 1) + b"\n"


def parse_seal(block: bytes) -> Seal | None:
    """Read a seal; None where the block is no seal at all, also if only its spacing differs from `render`."""
    try:
        (magic, kind), (form, version), (crc_word, crc), (size_word, num_bytes) = (
            line.split(" ") for line in block.decode("ascii").split("\n")[:4])
        seal = Seal(kind, int(version), int(crc, 16), int(num_bytes))
    except ValueError:
        return None
    is_whole = (magic, form, crc_word, size_word) == (MAGIC, "format", "crc32", "bytes") and seal.render() == block
    return seal if is_whole else None


def crc_of_body(file: BinaryIO) -> int:
    """Return the CRC-32 of everything after the seal, read in blocks."""
    file.seek(SEAL_BYTES)
    crc = 0
    while block := file.read(CRC_BLOCK_BYTES):
        crc = zlib.crc32(block, crc)
    return crc


def seal_file(file: BinaryIO, kind: str, version: int) -> None:
    """Compute the seal of a file whose body is complete and write it over the first 512 bytes."""
    crc = crc_of_body(file)
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    file.write(Seal(kind, version, crc, num_bytes).render())


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(descriptor)
