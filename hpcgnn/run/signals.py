"""Signals that ask a run to stop: noted from the first lines of the program on, and answered by training.

Nothing here imports anything but Python's own small modules, so that the handlers stand before a library is loaded.
"""

from __future__ import annotations

import os
import signal
import threading
import time

# By which sites and people ask: SIGUSR1 by Slurm's --signal=USR1@seconds, SIGUSR2 by Grid Engine and LSF, SIGXCPU by
# limits of processor time, SIGHUP by a terminal that is closed, SIGQUIT by Ctrl-\.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP,
                signal.SIGQUIT)
KEPT_IF_IGNORED = (signal.SIGHUP, signal.SIGQUIT)     # by nohup, and by shells for what they start with &
OUT_OF_TIME = signal.SIGALRM      # stands for the end of `hours`, which no signal tells


class StopRequest:
    """Context manager that notes stop signals instead of dying of them. It may be entered again while it is entered.

    Python runs handlers in the main thread only: entered in another one, this notes nothing, and signals do what the
    program has made of them.
    """

    def __init__(self) -> None:
        self._noted = 0
        self._depth = 0
        self._previous: dict[int, object] = {}
        self._ends_at = float("inf")      # in seconds of `time.monotonic`
        self._reserve = 0.0
        self._lap = 0.0

    def __enter__(self) -> StopRequest:
        self._depth += 1
        if self._depth == 1:
            self._noted, self._ends_at, self._reserve = 0, float("inf"), 0.0
        # Each time: a process that Open MPI starts without a launcher takes SIGHUP for itself.
        if threading.current_thread() is threading.main_thread():
            self._install()
        return self

    def _install(self) -> None:
        for number in STOP_SIGNALS:
            if number in KEPT_IF_IGNORED and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous.setdefault(number, signal.signal(number, self._note))
            # System calls of MPI and HDF5 go on after the note.
            signal.siginterrupt(number, False)
        # A launcher may have blocked them, so that one that came before the handler stood waits until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def __exit__(self, *exception) -> None:
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._previous.items():
                # None stands for a handler that Python did not install.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self._previous = {}

    @property
    def signal_number(self) -> int:
        """The first signal that came since it was entered, OUT_OF_TIME where the time is over, 0 before."""
        if not self._noted and time.monotonic() + self._reserve >= self._ends_at:
            self._noted = OUT_OF_TIME
        return self._noted

    def end_in(self, seconds: float) -> None:
        """From so many seconds on, and early enough for another lap, ask to stop."""
        self._lap = time.monotonic()
        self._ends_at = self._lap + seconds

    def note_lap(self) -> None:
        """An epoch with all that belongs to it has ended; the longest one is what the end of the time must leave."""
        now = time.monotonic()
        self._reserve, self._lap = max(self._reserve, now - self._lap), now

    def ignore_from_now_on(self) -> None:
        """Ignore stop signals once the exit status is settled: none may change it while the interpreter shuts down."""
        for number in self._previous:
            self._previous[number] = signal.SIG_IGN

    def _note(self, number: int, frame) -> None:
        if number == signal.SIGQUIT and self._noted:      # Ctrl-\ a second time
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._noted = self._noted or number


STOP_REQUEST = StopRequest()
