"""HelperThread: a second thread that starts, or fails to start, within seconds."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

START_SECONDS = 30.0      # time for a new thread to begin on a loaded machine


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
