"""Note where this rank stands: every step replaces the note, and the watchdog reads it from its own thread.

A note costs a tenth of a microsecond and no system call; words are made of it only when a rank stands still.

Last words of a process: written so that a launcher passes them on before it takes the ranks down.

The watchdog: a thread that ends the job where a rank makes no progress, and says which rank and what it does.

A rank that is stopped can't speak, so the others find it by its silence: while one of them stands still, the watchdogs
of all ranks leave a word at every look in a folder that all see.
"""

from __future__ import annotations

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

from hpcgnn.run.helper_thread import HelperThread


class Whereabouts:
    """Hold what a rank does, as a verb phrase or as a function that makes one.

    Attributes
    ----------
    place : tuple                  of the last `note`; another object after every one
    epoch : (seed, epoch) or None  that is trained
    """

    __slots__ = ("epoch", "place")

    def __init__(self) -> None:
        self.place: tuple = ("starts",)
        self.epoch: tuple[int, int] | None = None

    def note(self, *place) -> None:
        """Take down a verb phrase, "waits .." where other ranks decide how long; or a function that makes it, and its
        arguments.
        """
        self.place = place

    def describe(self) -> str:
        """Say what this rank does, and in which epoch."""
        first, *rest = self.place
        phrase = first(*rest) if isinstance(first, Callable) else first
        return phrase if self.epoch is None else f"{phrase} in epoch {self.epoch[1]} of seed {self.epoch[0]}"


HERE = Whereabouts()


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


STARTUP_SECONDS = 300.0     # granted at least while libraries are loaded and files opened, which leave no notes
LOOKS = 20                  # in a timeout
LONGEST_LOOK = 30.0         # seconds between two looks
LOOKS_TO_ANSWER = 4         # after which a rank without a new word is silent,
LEAST_SECONDS_TO_ANSWER = 3.0    # but not before so long, since a machine may be busy
SPEAKING_GRACE = 5.0        # seconds in which the lowest rank that lives speaks and takes the others down
WORDS = ".standstill"
MAX_NAMED = 8


class Colleague(NamedTuple):
    """Name the host and process of a rank, so that an operator can find it."""

    host: str
    process: int


@dataclass(frozen=True)
class Word:
    """Hold what a rank's watchdog says: the number of its look, what the rank does, and how long it has done so."""

    look: int
    does: str
    seconds: float


def words_folder(folder: Path) -> Path:
    """Return the folder where the watchdogs of a run leave their words."""
    return folder / WORDS


class Watchdog:
    """Looks at `HERE` from a thread of its own; started, and stopped, at most once at a time.

    Seconds count only while this process runs: a job that was suspended as a whole has not stood still.
    """

    def __init__(self) -> None:
        self._thread: HelperThread | None = None
        self._stopped = threading.Event()
        self._folder: Path | None = None
        self._rank, self._colleagues, self._timeout, self._period = 0, [], 0.0, 0.0

    def start(self, rank: int, colleagues: list[Colleague], timeout: float) -> None:
        """Look after the start-up of this rank, one of `colleagues`; with a timeout of 0 seconds not at all."""
        self.stop()
        self._rank, self._colleagues, self._folder = rank, colleagues, None
        self._timeout, self._period = max(timeout, STARTUP_SECONDS), min(timeout / LOOKS, LONGEST_LOOK)
        if timeout > 0:
            self._stopped.clear()
            self._thread = HelperThread(self._watch, "watchdog")
            self._thread.start()

    def look_closely(self, timeout: float, folder: Path | None) -> None:
        """Hold this rank to its timeout after the start-up, and where there is a folder that all ranks see, speak to
        their watchdogs in it.
        """
        HERE.note("begins")
        self._timeout, self._folder = timeout, folder

    def stop(self) -> None:
        """Look no more."""
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
        asked: tuple[float, dict[int, Word]] | None = None      # when this rank asked, and the words that lay there
        while not self._stopped.wait(period):
            look, before, looked = look + 1, looked, time.monotonic()
            if HERE.place is not place:
                place, seconds, asked = HERE.place, 0.0, None
            else:
                seconds += min(looked - before, 2 * period)
            if asked is None and seconds >= self._timeout:
                asked = looked, self._ask()
            self._answer(Word(look, HERE.describe(), seconds))
            if asked is not None and looked >= asked[0] + max(LOOKS_TO_ANSWER * period, LEAST_SECONDS_TO_ANSWER):
                self._judge(seconds, asked[1])
                asked = None

    def _ask(self) -> dict[int, Word]:
        """Have all watchdogs leave words; those that lie there already."""
        if self._folder is not None:
            try:
                words_folder(self._folder).mkdir(exist_ok=True)
            except OSError:
                self._folder = None      # this rank judges by what it knows itself
        return self._words()

    def _answer(self, word: Word) -> None:
        """Leave a word where one was asked for. The parent is listed, since a shared file system answers with an old
        no for longer than with an old list.
        """
        try:
            if self._folder is None or WORDS not in os.listdir(self._folder):
                return
            file = words_folder(self._folder) / f"{self._rank}.json"
            unfinished = file.with_suffix(".part")
            unfinished.write_text(json.dumps(asdict(word)))
            unfinished.replace(file)
        except OSError:
            return      # then the others say that this rank gave no sign

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
        """End the job, or return where every rank lives and one of them gets on."""
        if self._folder is None:
            self._end(self._rank, min(self._rank, 4) / 2, f"rank {self._named(self._rank)} has made no progress for "
                      f"{seconds:.0f} s: it {HERE.describe()}")
        words = {rank: word for rank, word in self._words().items()
                 if rank not in before or word.look > before[rank].look}
        silent = [rank for rank in range(len(self._colleagues)) if rank not in words]
        verdict = self._verdict(words, silent)
        if verdict is not None:
            speaker = min(words, default=self._rank)
            self._end(self._rank, 0.0 if speaker == self._rank else SPEAKING_GRACE, verdict)

    def _verdict(self, words: dict[int, Word], silent: list[int]) -> str | None:
        """Say what is wrong, in one sentence without its end; None where some rank gets on and all live."""
        stuck = [rank for rank, word in words.items() if word.seconds >= self._timeout]
        if silent:
            waiting = "".join(f"; rank {rank} {words[rank].does} since {words[rank].seconds:.0f} s"
                              for rank in stuck[:1])
            return (f"{_plural('rank', silent, self._named)} {'has' if len(silent) == 1 else 'have'} given no sign of "
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

    def _end(self, rank: int, grace: float, sentence: str) -> None:
        """Exit, without MPI, which would wait; the launcher takes the others down."""
        time.sleep(grace)
        if grace < SPEAKING_GRACE:
            say(f"hpcgnn: {sentence}; the job ends, a training goes on with --resume (--timeout sets the limit)\n")
        os._exit(1)


def _read_word(file: Path) -> Word | None:
    try:
        return Word(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _plural(noun: str, ranks: list[int], named) -> str:
    listed = ", ".join(named(rank) for rank in ranks[:MAX_NAMED])
    more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"{noun}{'s' if len(ranks) > 1 else ''} {listed}{more}"


WATCHDOG = Watchdog()
