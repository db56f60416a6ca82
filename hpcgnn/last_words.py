"""Last words of a process: written so that a launcher passes them on before it takes the ranks down.

Nothing here knows MPI, so that a thread may speak while its rank waits for others.
"""

from __future__ import annotations

import array
import fcntl
import os
import stat
import sys
import termios
import time
from typing import TextIO


def say(text: str) -> None:
    """Write to standard error, and return when the launcher has read it; what can't be written is left unsaid."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        return
    _wait_for_reader(sys.stderr)


def _wait_for_reader(stream: TextIO) -> None:
    """Wait until the launcher has read what was written: Open MPI's drops what still lies in a pipe of an aborted rank.

    At most 2 s, and 0.2 s more in which the launcher passes it on; nothing for a file or a terminal.
    """
    try:
        descriptor = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return
        for _ in range(100):
            unread = array.array("i", [0])
            fcntl.ioctl(descriptor, termios.FIONREAD, unread)
            if unread[0] == 0:
                break
            time.sleep(0.02)
    except (OSError, ValueError):       # closed, or no descriptor
        return
    time.sleep(0.2)
