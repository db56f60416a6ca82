"""RunLock: a run folder belongs to one run at a time, also on shared file systems.

The lock is a file that names its holder. link(2) creates it at once with its content, so if several runs try, one wins.
The holder touches the file every few seconds. A run on another machine watches whether this goes on. If not, it takes
the lock over, under a claim that is named after the stale lock and can be made only once, again by link(2).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hpcgnn.errors import TrainingError
from hpcgnn.registry import read_json, seal_json
from hpcgnn.run.output import tell
from hpcgnn.run.process import stat_of
from hpcgnn.run.watchdog import HelperThread

MONTHS = 60 * 86400.0      # seconds
TOKEN = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Holder:
    """The process that a lock names, identified among all processes on all machines."""

    host: str = ""      # empty if nothing is known about the process
    system: str = ""      # boot of the machine, and the namespace of `pid`
    pid: int = 0
    started: str = ""      # when the process started, in the kernel's units
    job: str = ""      # Slurm's job number, and how often the job was requeued; empty outside of Slurm
    restart: str = ""
    since: str = ""      # when the lock was taken, for the reader
    token: str = ""      # unique for every lock ever taken
    folder: str = ""      # folder of the lock, with links resolved
    inode: int = 0      # inode of the lock there; 0 if unknown

    @classmethod
    def of_this_process(cls) -> Holder:
        """This process, with a new token."""
        return cls(socket.gethostname(), _system(), os.getpid(), start_of(os.getpid()) or "",
                   os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", ""),
                   time.strftime("%Y-%m-%d %H:%M:%S"), secrets.token_hex(16))

    @classmethod
    def from_text(cls, content: bytes) -> Holder:
        """The holder that a lock's content names; an unknown one if it is damaged."""
        try:
            values, is_sealed = read_json(content.decode())
            holder = cls(**values)
        except (ValueError, TypeError):
            is_sealed = False
        if not is_sealed or not TOKEN.fullmatch(holder.token):
            return cls(token=hashlib.sha256(content).hexdigest()[:32])
        return holder

    def is_alive(self, mine: Holder) -> bool | None:
        """Whether the process lives, as seen by the process `mine`; None if this machine can't say."""
        if self.job and self.job == mine.job and _count(self.restart) < _count(mine.restart):
            return False    # Slurm requeues a job only after its processes have ended
        if not self.host or (self.host, self.system) != (mine.host, mine.system):
            return None
        return start_of(self.pid) == self.started

    def holds_another(self, file: Path, mine: Holder) -> bool:
        """Whether the lock was copied with its folder: its holder's machine finds the holder's own file elsewhere.

        A folder that was moved, or is seen under another path, has the same file.
        """
        if not self.inode or (self.host, self.system) != (mine.host, mine.system):
            return False
        return os.stat(file).st_ino != self.inode and os.path.realpath(file.parent) != self.folder

    def __str__(self) -> str:
        if not self.host:
            return "a process that its damaged lock does not name"
        job = f", Slurm job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}{job}, since {self.since}"


def start_of(pid: int) -> str | None:
    """Start of a process on this machine; None if there is none, or it is a zombie."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""
    try:
        fields = stat_of(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def seconds_of_this_process() -> float:
    start = start_of(os.getpid())
    if not start or not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(start) / os.sysconf("SC_CLK_TCK")


def seconds_to_the_end_of_the_job() -> float | None:
    """Seconds until the batch system ends this job, by SLURM_JOB_END_TIME (seconds since 1970); None if unknown.

    An end in the past belongs to an earlier job, and one in months to a job without a limit.
    """
    text = os.environ.get("SLURM_JOB_END_TIME", "")
    seconds = int(text) - time.time() if text.isdecimal() else -1.0
    return seconds if 0 < seconds < MONTHS else None


def is_in_a_job_of_unknown_end() -> bool:
    """Whether this is a job of Slurm older than 23.02, which does not name a job's end."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_JOB_END_TIME" not in os.environ


def _system() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""    # not Linux: only the host's name is known


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0


LOCK = "run.lock"
HEARTBEAT_SECONDS, PATIENCE_SECONDS, POLL_SECONDS = 5.0, 30.0, 0.5


class RunLock:
    """Ownership of one run folder; a context manager that takes it and gives it back.

    A missing folder is created, and removed again if it stays empty. TrainingError if a live run holds the folder, or
    it can't be written; nothing in it was changed.
    """

    def __init__(self, folder: Path):
        self.folder, self.file = folder, folder / LOCK
        self._mine = Holder.of_this_process()
        self._own_content = b""      # of the lock, once `check` has found it to be this process's
        self._made: list[Path] = []
        self._end = threading.Event()
        self._heart = HelperThread(self._beat, "run lock")

    def __enter__(self) -> RunLock:
        try:
            while not self._try_to_take():
                pass
        except OSError as error:
            self._remove_made_folders()
            lost = next((path for path in (self.folder, *self.folder.parents) if os.path.islink(path) and
                         not os.path.exists(path)), None)
            why = error.strerror if lost is None else f"{lost} is a link to {os.readlink(lost)}, which does not exist"
            raise TrainingError(f"run folder {self.folder} can't be written: {why}; choose another with --out") \
                from error
        except BaseException:
            self._remove_made_folders()
            raise
        self._heart.start()
        return self

    def __exit__(self, *exception) -> None:
        self._end.set()
        self._heart.join(POLL_SECONDS)    # no longer: a lost file server would block the join
        with suppress(OSError):
            if self._is_mine():
                self.file.unlink()
        self._remove_made_folders()

    def check(self) -> None:
        """Before a write: TrainingError if another run took the folder after too long without a sign of life."""
        with suppress(OSError):
            content = self.file.read_bytes()      # opening the file anew makes NFS ask the server
            if content == self._own_content:
                return
            holder = Holder.from_text(content)
            if holder.token != self._mine.token:
                raise TrainingError(f"{self.folder} has been taken over by {holder}, since this run gave no sign of "
                                    "life for too long; this run ends and leaves the folder to that one")
            self._own_content = content

    def _try_to_take(self) -> bool:
        """Try once to take the lock; False if it has changed meanwhile, so that the caller starts over."""
        self._make_folder()
        temporary = self.folder / f"{LOCK}.new-{self._mine.token}"
        try:
            self._mine = _write(temporary, self._mine)
            if not self._link(temporary, self.file) and not self._take_over(temporary):
                return False
        except FileNotFoundError:
            return False    # another, refused start has removed the folder that it had made
        finally:
            with suppress(OSError):
                temporary.unlink()
        # Remaining claims are void: they were made on an earlier lock.
        for claim in self.folder.glob(f"{LOCK}.after-*"):
            claim.unlink(missing_ok=True)
        return True

    def _take_over(self, temporary: Path) -> bool:
        victim = self._stale_holder(self.file)
        heir = victim
        while heir is not None:
            claim = self.folder / f"{LOCK}.after-{heir.token}"
            if self._link(temporary, claim):
                break
            # Another run is taking over, or died while it did; then its claim is taken over next.
            heir = self._stale_holder(claim)
        if heir is None:
            return False
        if self._read(self.file) != victim:
            claim.unlink(missing_ok=True)
            return False
        os.replace(temporary, self.file)
        return True

    def _stale_holder(self, file: Path) -> Holder | None:
        """The dead holder of a file; None if the file has changed or gone. Raises TrainingError if the holder lives."""
        before = _state_of(file)
        holder = self._read(file)
        if holder is None:
            return None
        if holder.holds_another(file, self._mine):
            return holder
        is_alive = holder.is_alive(self._mine)
        if is_alive is None:
            is_alive = self._is_touched(file, holder, before)
        if is_alive is None:
            return None
        if is_alive:
            raise TrainingError(f"{self.folder} is in use by another run: {holder}; wait until that ends, or choose "
                                "another --out")
        return holder

    def _is_touched(self, file: Path, holder: Holder, before: tuple) -> bool | None:
        """Whether a file shows a sign of life; None if its holder changes or it disappears."""
        tell(f"hpcgnn: {file} was left by {holder}, and this machine can't tell whether that process lives; "
              f"watching for a sign of life, {PATIENCE_SECONDS:.0f} s at most")
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            # Opening the file anew makes NFS ask the server.
            if self._read(file) != holder:
                return None
            if _state_of(file) != before:
                return True
        return False

    def _read(self, file: Path) -> Holder | None:
        try:
            return Holder.from_text(file.read_bytes())
        except FileNotFoundError:
            return None

    def _is_mine(self) -> bool:
        holder = self._read(self.file)
        return holder is not None and holder.token == self._mine.token

    def _link(self, temporary: Path, file: Path) -> bool:
        """Make `file` with the content of `temporary` unless it exists; return whether it was made."""
        try:
            os.link(temporary, file)
        except FileExistsError:
            # If NFS loses an answer, the request is sent again and fails; the number of links says whether it
            # succeeded.
            return os.stat(temporary).st_nlink == 2 and os.path.samefile(temporary, file)
        except FileNotFoundError:
            raise       # the folder has gone
        except OSError:
            # A file system without links reports various errors, such as EPERM, or 524 on Cray's DVS. If the disk is at
            # fault, writing fails too.
            return _write_exclusively(file, self._mine)
        return True

    def _beat(self) -> None:
        while not self._end.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                if self._is_mine():
                    os.utime(self.file)

    def _make_folder(self) -> None:
        missing = [path for path in (self.folder, *self.folder.parents) if not os.path.lexists(path)]
        self._made = missing or self._made
        self.folder.mkdir(parents=True, exist_ok=True)

    def _remove_made_folders(self) -> None:
        """Remove the folders made here, deepest first, if empty."""
        for path in self._made:
            with suppress(OSError):
                path.rmdir()


def _text_of(holder: Holder) -> str:
    return seal_json(json.dumps(asdict(holder))) + "\n"


def _write(file: Path, holder: Holder) -> Holder:
    """Write a lock; return its holder with the file's place."""
    with open(file, "w", encoding="utf-8") as opened:
        placed = _placed(holder, file, opened.fileno())
        opened.write(_text_of(placed))
        opened.flush()
        os.fsync(opened.fileno())
    return placed


def _placed(holder: Holder, file: Path, descriptor: int) -> Holder:
    return replace(holder, folder=os.path.realpath(file.parent), inode=os.fstat(descriptor).st_ino)


def _write_exclusively(file: Path, holder: Holder) -> bool:
    """Create the file without links. A reader may see the file before its content, and then watches the file."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    with open(descriptor, "w", encoding="utf-8") as opened:
        opened.write(_text_of(_placed(holder, file, opened.fileno())))
    return True


def _state_of(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns
