"""RunLock: a run folder belongs to one run at a time, on shared file systems too.

The lock is a file that names its holder. It comes into being whole, by link(2), so of several that take it one wins.
The holder touches it every few seconds; who finds it on another machine watches whether that goes on. A stale lock is
taken over under a claim that is named after it and, by link(2) again, made once only.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpcgnn.checked_text import seal_json
from hpcgnn.errors import TrainingError
from hpcgnn.helper_thread import HelperThread
from hpcgnn.output import tell
from hpcgnn.training.holder import Holder

LOCK = "run.lock"
HEARTBEAT_SECONDS, PATIENCE_SECONDS, POLL_SECONDS = 5.0, 30.0, 0.5


class RunLock:
    """The ownership of one run folder; a context manager that takes it and gives it back.

    Parameters
    ----------
    folder : Path      made where it is missing, and removed again if nothing else has come into it

    Raises
    ------
    TrainingError      a live run holds it, or the folder can't be written; nothing in the folder was changed
    """

    def __init__(self, folder: Path):
        self.folder, self.file = folder, folder / LOCK
        self._mine = Holder.of_this_process()
        self._made: list[Path] = []
        self._end = threading.Event()
        self._heart = HelperThread(self._beat, "run lock")

    def __enter__(self) -> RunLock:
        try:
            while not self._try_to_take():
                pass
        except OSError as error:
            self._remove_made_folders()
            raise TrainingError(f"run folder {self.folder} can't be written: {error.strerror}; "
                                "choose another with --out") from error
        except BaseException:
            self._remove_made_folders()
            raise
        self._heart.start()
        return self

    def __exit__(self, *exception) -> None:
        self._end.set()
        self._heart.join(POLL_SECONDS)    # no longer: a file server that is gone would hold it
        with suppress(OSError):
            if self._is_mine():
                self.file.unlink()
        self._remove_made_folders()

    def check(self) -> None:
        """Check that the folder still belongs to this run, before something is written in it.

        Raises
        ------
        TrainingError      another run has taken it, since this one gave no sign of life for too long
        """
        with suppress(OSError):
            holder = self._read(self.file)
            if holder is not None and holder.token != self._mine.token:
                raise TrainingError(f"{self.folder} has been taken over by {holder}, since this run gave no sign of "
                                    "life for too long; this run ends and leaves the folder to that one")

    def _try_to_take(self) -> bool:
        """Try once to take the lock; False where it has changed meanwhile, so that the caller starts anew."""
        self._make_folder()
        temporary = self.folder / f"{LOCK}.new-{self._mine.token}"
        try:
            self._mine = _write(temporary, self._mine)
            if not self._link(temporary, self.file) and not self._take_over(temporary):
                return False
        except FileNotFoundError:
            return False    # another start, which was refused, has removed the folder that it had made
        finally:
            with suppress(OSError):
                temporary.unlink()
        # Claims that are left are void: what they were made on is the lock no more.
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
            # Somebody else is taking over; or has died while it did, and is the next to be taken over from.
            heir = self._stale_holder(claim)
        if heir is None:
            return False
        if self._read(self.file) != victim:
            claim.unlink(missing_ok=True)
            return False
        os.replace(temporary, self.file)
        return True

    def _stale_holder(self, file: Path) -> Holder | None:
        """Return the dead holder of a file; None where the file has changed or gone.

        Raises
        ------
        TrainingError      it lives
        """
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
        """Watch a file for a sign of life; None where it gets another holder or goes."""
        tell(f"hpcgnn: {file} was left by {holder}, of whom this machine can't tell whether it lives; watching for a "
              f"sign of life, {PATIENCE_SECONDS:.0f} s at most")
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            # Opened anew, which makes NFS ask its server.
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
        """Make `file` with the content of `temporary` if there is none; whether it was made."""
        try:
            os.link(temporary, file)
        except FileExistsError:
            # An answer of NFS may be lost and the request be sent again: the number of links tells the truth.
            return os.stat(temporary).st_nlink == 2 and os.path.samefile(temporary, file)
        except FileNotFoundError:
            raise       # the folder has gone
        except OSError:
            # A file system without links says so in words of its own, such as EPERM, or 524 on Cray's DVS. Where the
            # disk is at fault, writing says it.
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
        """Remove the folders made here, deepest first; one that is not empty stays."""
        for path in self._made:
            with suppress(OSError):
                path.rmdir()


def _text_of(holder: Holder) -> str:
    return seal_json(json.dumps(holder.values())) + "\n"


def _write(file: Path, holder: Holder) -> Holder:
    """Write a lock, and return its holder with the place of the file."""
    with open(file, "w", encoding="utf-8") as opened:
        placed = _placed(holder, file, opened.fileno())
        opened.write(_text_of(placed))
        opened.flush()
        os.fsync(opened.fileno())
    return placed


def _placed(holder: Holder, file: Path, descriptor: int) -> Holder:
    return replace(holder, folder=os.path.realpath(file.parent), inode=os.fstat(descriptor).st_ino)


def _write_exclusively(file: Path, holder: Holder) -> bool:
    """Create the file without links. A reader may see the file before its content, and then watches it."""
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
