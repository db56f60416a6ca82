"""Watchdog: a thread that ends the job when a rank makes no progress, and says which rank and what it was doing.

Each step notes what the rank does in `HERE`, in a tenth of a microsecond and without a system call. The watchdog looks
at the note 20 times per timeout. If the note did not change for a whole timeout, it asks all watchdogs, through a
folder that all ranks see, to write down what their ranks do and since when. Example: rank 1 was suspended, and ranks 0
and 2 wait for it. Only the words of ranks 0 and 2 arrive, so rank 1 has given no sign of life. Rank 0, the lowest that
lives, reports this and ends the job.
"""

from __future__ import annotations

import _thread
import array
import fcntl
import json
import os
import shutil
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

from hpcgnn.run.output import MAX_NAMED, ranks_text

STARTUP_SECONDS = 300.0     # least timeout at the start: loading libraries and opening files leaves no notes
LOOKS = 20                  # looks per timeout
LONGEST_LOOK = 30.0         # seconds between two looks
LOOKS_TO_ANSWER = 4         # a rank without a new word after this many looks is silent,
LEAST_SECONDS_TO_ANSWER = 3.0    # but not before this many seconds, since a machine may be busy
SPEAKING_GRACE = 5.0        # seconds in which the lowest rank that lives reports and ends the others
WORDS = ".standstill"
START_SECONDS = 30.0      # time for a new thread to begin on a loaded machine


class Watchdog:
    """Watches `HERE` from a thread.

    Seconds count only while this process runs: the suspension of a whole job is no standstill.
    """

    def __init__(self) -> None:
        self._thread: HelperThread | None = None
        self._stopped = threading.Event()
        self._folder: Path | None = None
        self._rank, self._timeout, self._period = 0, 0.0, 0.0
        self._colleagues: list[Colleague] = []

    def start(self, rank: int, colleagues: list[Colleague], timeout: float) -> None:
        """Watch the start-up of rank `rank` of `colleagues`; a timeout of 0 seconds watches nothing."""
        self.stop()
        self._rank, self._colleagues, self._folder = rank, colleagues, None
        self._timeout, self._period = max(timeout, STARTUP_SECONDS), min(timeout / LOOKS, LONGEST_LOOK)
        if timeout > 0:
            self._stopped.clear()
            self._thread = HelperThread(self._watch, "watchdog")
            self._thread.start()

    def look_closely(self, timeout: float, folder: Path | None) -> None:
        """Apply the timeout from now on, and talk to the other watchdogs in `folder`, if given."""
        HERE.note("begins")
        self._timeout, self._folder = timeout, folder

    def stop(self) -> None:
        if self._thread is None:
            return
        self._stopped.set()
        self._thread.join()
        self._thread = None
        if self._rank == 0 and self._folder is not None:
            shutil.rmtree(words_folder(self._folder), ignore_errors=True)
        HERE.epoch = None

    def _watch(self) -> None:
        period = self._period
        place, seconds, look, looked = HERE.place, 0.0, 0, time.monotonic()
        asked: tuple[float, dict[int, Word]] | None = None      # when this rank asked, and the words that were there
        while not self._stopped.wait(period):
            look, before, looked = look + 1, looked, time.monotonic()
            if HERE.place is not place:
                place, seconds, asked = HERE.place, 0.0, None
            else:
                # A longer gap means that this process was suspended; that is no standstill.
                seconds += min(looked - before, 2 * period)
            if asked is None and seconds >= self._timeout:
                asked = looked, self._ask()
            self._answer(Word(look, HERE.describe(), seconds))
            if asked is not None and looked >= asked[0] + max(LOOKS_TO_ANSWER * period, LEAST_SECONDS_TO_ANSWER):
                self._judge(seconds, asked[1])
                asked = None

    def _ask(self) -> dict[int, Word]:
        if self._folder is not None:
            try:
                words_folder(self._folder).mkdir(exist_ok=True)
            except OSError:
                self._folder = None      # from now on this rank judges alone
        return self._words()

    def _answer(self, word: Word) -> None:
        try:
            # The parent is listed, since shared file systems cache a missing file longer than a listing.
            if self._folder is None or WORDS not in os.listdir(self._folder):
                return
            file = words_folder(self._folder) / f"{self._rank}.json"
            unfinished = file.with_suffix(".part")
            unfinished.write_text(json.dumps(asdict(word)))
            unfinished.replace(file)
        except OSError:
            return      # then the other ranks report that this one gave no sign of life

    def _words(self) -> dict[int, Word]:
        if self._folder is None:
            return {}
        found = {}
        for rank in range(len(self._colleagues)):
            word = _read_word(words_folder(self._folder) / f"{rank}.json")
            if word is not None:
                found[rank] = word
        return found

    def _judge(self, seconds: float, before: dict[int, Word]) -> None:
        if self._folder is None:
            self._end(min(self._rank, 4) / 2, f"rank {self._named(self._rank)} has made no progress for "
                      f"{seconds:.0f} s: it {HERE.describe()}")
        # Only words written since the question count.
        words = {rank: word for rank, word in self._words().items()
                 if rank not in before or word.look > before[rank].look}
        silent = [rank for rank in range(len(self._colleagues)) if rank not in words]
        verdict = self._verdict(words, silent)
        if verdict is not None:
            speaker = min(words, default=self._rank)
            self._end(0.0 if speaker == self._rank else SPEAKING_GRACE, verdict)

    def _verdict(self, words: dict[int, Word], silent: list[int]) -> str | None:
        stuck = [rank for rank, word in words.items() if word.seconds >= self._timeout]
        if silent:
            waiting = "".join(f"; rank {rank} {words[rank].does} since {words[rank].seconds:.0f} s"
                              for rank in stuck[:1])
            return (f"{ranks_text(silent, self._named)} {'has' if len(silent) == 1 else 'have'} given no sign of "
                    f"life for {self._timeout:.0f} s{waiting}")
        if len(stuck) < len(words):
            return None
        busy = [rank for rank in stuck if not words[rank].does.startswith("waits")]
        named = busy or stuck
        what = ", ".join(f"rank {self._named(rank)} {words[rank].does}" for rank in named[:MAX_NAMED])
        return f"no rank has made progress for {self._timeout:.0f} s: {what}" + (
            ", and the others wait" if len(named) < len(words) else "")

    def _named(self, rank: int) -> str:
        return f"{rank} ({self._colleagues[rank].host}, process {self._colleagues[rank].process})"

    def _end(self, grace: float, sentence: str) -> None:
        # Lower ranks speak first. Exit without MPI, which would wait; the launcher takes the others down.
        time.sleep(grace)
        if grace < SPEAKING_GRACE:
            say(f"hpcgnn: {sentence}; the job ends, a training goes on with --resume (--timeout sets the limit)\n")
        os._exit(1)


class Colleague(NamedTuple):
    """Host and process of a rank, for the operator."""

    host: str
    process: int


@dataclass(frozen=True)
class Word:
    """A watchdog's report on its rank: number of the look, what the rank does, and for how long."""

    look: int
    does: str
    seconds: float


def words_folder(folder: Path) -> Path:
    """Where the watchdogs of a run leave their words."""
    return folder / WORDS


def _read_word(file: Path) -> Word | None:
    try:
        return Word(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


class Whereabouts:
    """What a rank is doing; `place` is a new object after each `note`."""

    __slots__ = ("epoch", "place")

    def __init__(self) -> None:
        self.place: tuple = ("starts",)
        # (seed, epoch) that is being trained.
        self.epoch: tuple[int, int] | None = None

    def note(self, *place) -> None:
        """Note a verb phrase, or a function and arguments for it; "waits ..." says that others decide how long.
        """
        self.place = place

    def describe(self) -> str:
        first, *rest = self.place
        phrase = first(*rest) if callable(first) else first
        return phrase if self.epoch is None else f"{phrase} in epoch {self.epoch[1]} of seed {self.epoch[0]}"


def say(text: str) -> None:
    """Write to standard error and return when the launcher has read it; drop what can't be written."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        return
    _wait_for_reader(sys.stderr)


def _wait_for_reader(stream: TextIO) -> None:
    try:
        # Open MPI's launcher discards what is still in the pipe of an aborted rank. Wait at most 2 s until the pipe is
        # empty, then 0.2 s for the launcher to pass it on. Files and terminals need no wait.
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


HERE = Whereabouts()

WATCHDOG = Watchdog()


class HelperThread:
    """Calls `target()` once, in a daemon thread; `name` is for the error of a failed start.

    `threading.Thread.start` waits until the new thread says that it runs. A thread that gets no memory never says so,
    and the starter hangs (seen under an address-space limit). Here the wait ends after START_SECONDS, and neither side
    allocates anything.
    """

    def __init__(self, target: Callable[[], None], name: str):
        self._target, self._name = target, name
        self._is_waited_for, self._is_running = threading.Lock(), threading.Lock()

    def start(self) -> None:
        """Start the thread, once only; MemoryError if it does not begin to run."""
        # Two locks: the thread releases the first when it runs, and the second when its function has returned.
        self._is_waited_for.acquire()
        self._is_running.acquire()
        _thread.start_new_thread(self._run, ())
        if not self._is_waited_for.acquire(timeout=START_SECONDS):
            self._is_running.release()
            raise MemoryError(f"thread {self._name} could not begin")

    def join(self, timeout: float = -1) -> None:
        """Wait until the function has returned, at most `timeout` seconds; return at once if it never began."""
        if self._is_running.acquire(timeout=timeout):
            self._is_running.release()

    @property
    def is_running(self) -> bool:
        return self._is_running.locked()

    def _run(self) -> None:
        self._is_waited_for.release()
        try:
            self._target()
        finally:
            self._is_running.release()
