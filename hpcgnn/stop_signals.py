"""Signals that ask a run to stop: noted from the first lines of the program on, and answered by training.

Nothing here imports anything but `signal`, so that the handlers stand before a library is loaded.
"""

from __future__ import annotations

import signal

# SIGUSR1 is what Slurm sends with --signal=USR1@seconds before a job's time runs out.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Context manager that notes stop signals instead of dying of them. It may be entered again while it is entered.

    Attributes
    ----------
    signal_number : int      the first signal that came since it was entered, 0 before
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self._depth = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        self._depth += 1
        if self._depth == 1:
            self.signal_number = 0
            self._previous = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
            for number in STOP_SIGNALS:
                # System calls of MPI and HDF5 go on after the note.
                signal.siginterrupt(number, False)
            # A launcher may have blocked them, so that one that came before the handler stood waits until now.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return self

    def __exit__(self, *exception) -> None:
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def ignore_from_now_on(self) -> None:
        """Ignore stop signals once the exit status is settled: none may change it while the interpreter shuts down."""
        for number in STOP_SIGNALS:
            self._previous[number] = signal.SIG_IGN

    def _note(self, number: int, frame) -> None:
        self.signal_number = self.signal_number or number


STOP_REQUEST = StopRequest()
