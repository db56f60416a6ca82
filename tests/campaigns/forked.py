"""Tries cases in processes forked from this one, so that a crash, a hang or a leak ends a case and not the campaign.

Whoever forks must have imported what cases need, and started no thread and no MPI.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

Case = Callable[[int], "str | None"]
ITSELF = "the campaign itself failed: "


class Worker:
    """Answers cases in a child: one child for many cases, or with `is_fresh` a new one for each.

    Parameters
    ----------
    try_case : what a case does; its answer comes back from the child
    seconds : float           a case that takes longer is a hang
    is_fresh : bool
    """

    def __init__(self, try_case: Case, seconds: float, is_fresh: bool = False):
        self._try_case, self._seconds, self._is_fresh = try_case, seconds, is_fresh
        self._child: multiprocessing.Process | None = None
        self._pipe: Connection | None = None

    def ask(self, number: int) -> str | None:
        """What the case answers, or how its child ended."""
        if self._child is None:
            self._start()
        self._pipe.send(number)
        if not self._pipe.poll(self._seconds):
            self.close()
            return f"no end within {self._seconds:g} s"
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._child.join()
            answer = ended_by(self._child.exitcode)
            self.close()
        if self._is_fresh:
            self.close()
        return answer

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._pipe.close()
            self._child = self._pipe = None

    def _start(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._child = context.Process(target=_serve, args=(theirs, self._pipe, self._try_case), daemon=True)
        self._child.start()
        theirs.close()


def ended_by(exit_code: int) -> str:
    """How a process ended that should have answered."""
    if exit_code < 0:
        return f"ended by {signal.Signals(-exit_code).name}"
    return f"ended with status {exit_code} and without an answer"


def _serve(pipe: Connection, parent: Connection, try_case: Case) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    parent.close()
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = try_case(number)
        except BaseException:
            answer = f"{ITSELF}{traceback.format_exc()}"
        pipe.send(answer)


def run_forked(body: Callable[[], int], folder: Path, seconds: float) -> tuple[int | None, str]:
    """Run `body` in a child whose working folder is `folder`, as a program that ends with the status that it returns.

    Returns
    -------
    status : int or None     below zero for a signal, None where the child had to be killed
    said : str               what it wrote to standard error
    """
    with tempfile.TemporaryFile("w+b") as errors:
        child = os.fork()
        if child == 0:
            _live_as_program(body, folder, errors.fileno())
        status = _awaited(child, seconds)
        errors.seek(0)
        return status, errors.read().decode(errors="replace")


def _live_as_program(body: Callable[[], int], folder: Path, errors: int) -> None:
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(folder)
        os.dup2(errors, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr, sys.stdout = os.fdopen(2, "w", 1), os.fdopen(1, "w")
        status = body()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(status)


def _awaited(child: int, seconds: float) -> int | None:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
