"""PatientFile: a file object that outlives a failed write. Nothing about HDF5 content or seals is known here."""

from __future__ import annotations

import io
import os
from pathlib import Path


class PatientFile(io.RawIOBase):
    """A file that HDF5 writes through and that keeps the first failure for later.

    HDF5 can crash the process at exit if a write fails under it (a full disk), so it is told that all went well, and
    the writer raises `failure` once HDF5 is done.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.failure: OSError | None = None
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 - closed by close()

    def write(self, data) -> int:
        """Write all of `data`, or note why not; the length of `data` is returned either way."""
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
