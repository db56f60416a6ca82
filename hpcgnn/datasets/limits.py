"""Refuse sources that ask for too much: a pipe to wait at, or more memory than there is. No format is known here."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hpcgnn.errors import DatasetError


def check_file(path: Path) -> None:
    """Raise DatasetError if a path leads to something that is no file, at which a reader could wait for ever.

    What does not exist or can't be looked at passes: opening it says why.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise DatasetError(f"{path} is {kind}; expected a file")


def check_memory(name: str, what: str, num_bytes: int) -> None:
    """Raise DatasetError where arrays of so many bytes can't be in this machine's memory.

    The system promises more memory than there is, and kills who uses it.
    """
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > available:
        raise DatasetError(f"{name} has {what}, which take {num_bytes / 1e9:,.0f} GB or more, and this machine has "
                           f"{available / 1e9:,.0f} GB; look for a wrong number in the source, or use a larger machine")
