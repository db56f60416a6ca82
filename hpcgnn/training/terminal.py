"""Whether somebody watches: a rank's own standard error is a pipe to the launcher, so the launcher's is looked at."""

from __future__ import annotations

import os
import sys

# The launcher and its helpers between a rank and the shell, as the kernel shortens their names.
LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "prte", "prted", "orterun", "orted", "hydra_pmi_proxy",
             "srun", "slurmstepd", "timeout")


def is_watched() -> bool:
    """True where progress may be drawn: standard error is a terminal, or that of the launcher on this machine is.

    HPCGNN_PROGRESS=1 or 0 decides by itself.
    """
    decided = os.environ.get("HPCGNN_PROGRESS")
    if decided in ("0", "1"):
        return decided == "1"
    return sys.stderr.isatty() or _launcher_has_terminal()


def _launcher_has_terminal() -> bool:
    launcher = None
    try:
        process = os.getppid()
        while _name_of(process) in LAUNCHERS:
            launcher, process = process, _parent_of(process)
        return launcher is not None and os.readlink(f"/proc/{launcher}/fd/2").startswith(("/dev/pts/", "/dev/tty"))
    except (OSError, ValueError):
        # No /proc, or another user's process: nothing is known of a terminal, so nothing is drawn.
        return False


def _name_of(process: int) -> str:
    with open(f"/proc/{process}/comm") as file:
        return file.read().strip()


def _parent_of(process: int) -> int:
    with open(f"/proc/{process}/stat") as file:
        # The name in parentheses may hold anything, spaces too; state and parent follow it.
        return int(file.read().rsplit(")", 1)[1].split()[1])
