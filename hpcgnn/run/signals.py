"""Stop signals: noted by handlers from the program's first lines on, and answered by training between steps.

Only small modules of Python are imported, so that the handlers are installed before any library loads.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

# Slurm sends SIGUSR1 (--signal=USR1@seconds), Grid Engine and LSF SIGUSR2, limits of processor time SIGXCPU, a closed
# terminal SIGHUP, and Ctrl-\ SIGQUIT.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP,
                signal.SIGQUIT)
KEPT_IF_IGNORED = (signal.SIGHUP, signal.SIGQUIT)     # ignored by nohup, and by shells for commands started with &
OUT_OF_TIME = signal.SIGALRM      # stands for the end of `hours`; no such signal is sent


class StopRequest:
    """Context manager that notes stop signals instead of dying of them; can be nested.

    Python runs handlers in the main thread only. Entered in another thread, it changes no handler.
    """

    def __init__(self) -> None:
        self._noted = 0
        self._depth = 0
        self._previous: dict[int, Any] = {}
        self._ends_at = float("inf")      # seconds of `time.monotonic`
        self._reserve = 0.0
        self._lap = 0.0

    def __enter__(self) -> StopRequest:
        self._depth += 1
        if self._depth == 1:
            self._noted, self._ends_at, self._reserve = 0, float("inf"), 0.0
        # Installed at each entry: without a launcher, Open MPI's process takes SIGHUP for itself.
        if threading.current_thread() is threading.main_thread():
            self._install()
        return self

    def _install(self) -> None:
        for number in STOP_SIGNALS:
            if number in KEPT_IF_IGNORED and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous.setdefault(number, signal.signal(number, self._note))
            # System calls of MPI and HDF5 go on after the handler.
            signal.siginterrupt(number, False)
        # A launcher may have blocked these signals until the handlers were installed; one that came earlier arrives
        # now.
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
        """The first signal noted; OUT_OF_TIME when time is up; 0 before."""
        if not self._noted and time.monotonic() + self._reserve >= self._ends_at:
            self._noted = OUT_OF_TIME
        return self._noted

    def end_in(self, seconds: float) -> None:
        """Ask to stop in `seconds`, or earlier if another epoch would not fit."""
        self._lap = time.monotonic()
        self._ends_at = self._lap + seconds

    def note_lap(self) -> None:
        """Note the end of an epoch; the longest one so far is the time to reserve."""
        now = time.monotonic()
        self._reserve, self._lap = max(self._reserve, now - self._lap), now

    def ignore_from_now_on(self) -> None:
        """Ignore stop signals, so that none changes the exit status while the interpreter shuts down."""
        for number in self._previous:
            self._previous[number] = signal.SIG_IGN

    def _note(self, number: int, frame) -> None:
        if number == signal.SIGQUIT and self._noted:      # Ctrl-\ a second time
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._noted = self._noted or number


STOP_REQUEST = StopRequest()
