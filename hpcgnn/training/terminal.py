"""The terminal that a user watches: a rank's own standard error is only a pipe to the launcher.

Open MPI's mpirun passes output on line by line, so a moving bar is drawn directly in mpirun's terminal.
"""

from __future__ import annotations

import os
import sys
import termios
from typing import TextIO

# The launcher and its helpers between a rank and the shell, as the kernel shortens their names.
LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "prte", "prted", "orterun", "orted", "hydra_pmi_proxy",
             "srun", "slurmstepd", "timeout", "hpcgnn-launch")
LOCAL_FLAGS = 3      # index of the local modes in the result of termios.tcgetattr


def watched_stream() -> TextIO | None:
    """Stream to draw progress in: standard error if it is a terminal, else the terminal of this machine's launcher.

    HPCGNN_PROGRESS=1 takes standard error in any case, 0 none.
    """
    decided = os.environ.get("HPCGNN_PROGRESS")
    if decided == "0":
        return None
    if decided == "1" or (sys.stderr is not None and sys.stderr.isatty()):
        return sys.stderr
    return _terminal_of_launcher()


def _terminal_of_launcher() -> TextIO | None:
    launcher = None
    try:
        process = os.getppid()
        while _name_of(process) in LAUNCHERS:
            launcher, process = process, _parent_of(process)
        if launcher is None:
            return None
        terminal = os.readlink(f"/proc/{launcher}/fd/2")
        return _opened(terminal) if terminal.startswith(("/dev/pts/", "/dev/tty")) else None
    except (OSError, ValueError):
        # No /proc, or another user's process: no terminal is known, so nothing is drawn.
        return None


def _opened(terminal: str) -> TextIO | None:
    descriptor = os.open(terminal, os.O_WRONLY | os.O_NOCTTY)
    # Ranks write from the background, and some terminals stop processes that do; such terminals are left alone.
    if not os.isatty(descriptor) or termios.tcgetattr(descriptor)[LOCAL_FLAGS] & termios.TOSTOP:
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "w", buffering=1)


def _name_of(process: int) -> str:
    with open(f"/proc/{process}/comm") as file:
        return file.read().strip()


def _parent_of(process: int) -> int:
    with open(f"/proc/{process}/stat") as file:
        # The name in parentheses may hold anything, spaces too; state and parent follow it.
        return int(file.read().rsplit(")", 1)[1].split()[1])
