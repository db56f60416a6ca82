"""HelperThread: a thread beside the main one whose start either succeeds or fails, but never waits for ever."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

START_SECONDS = 30.0      # that a new thread has on a loaded machine until it runs


class HelperThread:
    """Calls a function once, in a thread that ends with the process at the latest.

    `threading.Thread.start` waits until the new thread has said that it runs. A thread that is refused memory before
    it can say so leaves its starter waiting without end (seen under a limit of the address space). Here the wait has
    an end, and neither saying nor waiting allocates anything.

    Parameters
    ----------
    target : callable without arguments
    name : str      for the sentence of a failed start
    """

    def __init__(self, target: Callable[[], None], name: str):
        self._target, self._name = target, name
        self._is_waited_for, self._is_running = threading.Lock(), threading.Lock()

    def start(self) -> None:
        """Begin; once only.

        Raises
        ------
        MemoryError      the thread did not come to run
        """
        self._is_waited_for.acquire()
        self._is_running.acquire()
        _thread.start_new_thread(self._run, ())
        if not self._is_waited_for.acquire(timeout=START_SECONDS):
            self._is_running.release()
            raise MemoryError(f"thread {self._name} could not begin")

    def join(self, timeout: float = -1) -> None:
        """Wait until the function has returned, or for so many seconds; at once where it never began."""
        if self._is_running.acquire(timeout=timeout):
            self._is_running.release()

    @property
    def is_running(self) -> bool:
        """Tell whether the function has begun and not yet returned."""
        return self._is_running.locked()

    def _run(self) -> None:
        self._is_waited_for.release()
        try:
            self._target()
        finally:
            self._is_running.release()
