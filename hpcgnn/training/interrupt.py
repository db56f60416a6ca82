"""Signals that ask a run to stop: noted when they come, agreed on by all ranks at the end of an epoch."""

from __future__ import annotations

import signal

# SIGUSR1 is what Slurm sends with --signal=USR1@seconds before a job's time runs out.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Context manager that notes stop signals instead of dying of them.

    Attributes
    ----------
    signal_number : int      the first signal that came, 0 before
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        self.signal_number = self.signal_number or number
