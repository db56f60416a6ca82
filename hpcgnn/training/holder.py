"""Holder: the process that a lock names, and whether this machine knows that it lives. No file is written here."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcgnn.checked_text import read_json

MONTHS = 60 * 86400.0      # seconds
TOKEN = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Holder:
    """A process, told from all others on any machine.

    Attributes
    ----------
    host : str               empty where nothing is known of the process
    system : str             the boot of the machine and the space of process numbers that `pid` is one of
    pid : int
    started : str            when the process started, in the kernel's own count
    job, restart : str       Slurm's number of the job, and how often that was requeued; empty outside of Slurm
    since : str              when the lock was taken, for the reader
    folder : str             the lock's, without links, and
    inode : int              the lock's number there; 0 where nothing is known of it
    token : str              differs for every lock that was ever taken
    """

    host: str = ""
    system: str = ""
    pid: int = 0
    started: str = ""
    job: str = ""
    restart: str = ""
    since: str = ""
    token: str = ""
    folder: str = ""
    inode: int = 0

    @classmethod
    def of_this_process(cls) -> Holder:
        """This process, with a new token."""
        return cls(socket.gethostname(), _system(), os.getpid(), start_of(os.getpid()) or "",
                   os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", ""),
                   time.strftime("%Y-%m-%d %H:%M:%S"), secrets.token_hex(16))

    @classmethod
    def from_text(cls, content: bytes) -> Holder:
        """Return the holder that a lock's content names; one of whom nothing is known where it is damaged."""
        try:
            values, is_sealed = read_json(content.decode())
            holder = cls(**values)
        except (ValueError, TypeError):
            is_sealed = False
        if not is_sealed or not TOKEN.fullmatch(holder.token):
            return cls(token=hashlib.sha256(content).hexdigest()[:32])
        return holder

    def is_alive(self, mine: Holder) -> bool | None:
        """Tell whether the process lives; None where this machine can't tell.

        Parameters
        ----------
        mine : Holder      this process
        """
        if self.job and self.job == mine.job and _count(self.restart) < _count(mine.restart):
            return False    # Slurm requeues a job only after its processes have ended
        if not self.host or (self.host, self.system) != (mine.host, mine.system):
            return None
        return start_of(self.pid) == self.started

    def holds_another(self, file: Path, mine: Holder) -> bool:
        """Whether a lock is a copy, made with its folder: on the machine of its holder, it lies elsewhere than the file
        that the holder has made. A folder that was moved, or is seen by another path, keeps the file.
        """
        if not self.inode or (self.host, self.system) != (mine.host, mine.system):
            return False
        return os.stat(file).st_ino != self.inode and os.path.realpath(file.parent) != self.folder

    def __str__(self) -> str:
        if not self.host:
            return "a process that its damaged lock does not name"
        job = f", Slurm job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}{job}, since {self.since}"

    def values(self) -> dict[str, str | int]:
        """Return the values that `from_text` reads."""
        return asdict(self)


def start_of(pid: int) -> str | None:
    """Return a process's start on this machine; None where there is none, or it has ended and waits for its parent."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""
    try:
        # The name in parentheses may hold anything, spaces too; state and, 19 fields later, the start follow it.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def seconds_of_this_process() -> float:
    """Return how long this process has run; 0 where the system does not say."""
    start = start_of(os.getpid())
    if not start or not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(start) / os.sysconf("SC_CLK_TCK")


def seconds_to_the_end_of_the_job() -> float | None:
    """Return how long the batch system lets this job run on, None where it does not say, as of SLURM_JOB_END_TIME
    (seconds since 1970). An end that is over belongs to an earlier job, and one after months to a job without a limit.
    """
    text = os.environ.get("SLURM_JOB_END_TIME", "")
    seconds = int(text) - time.time() if text.isdecimal() else -1.0
    return seconds if 0 < seconds < MONTHS else None


def _system() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""    # no Linux: the host's name must do


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0
