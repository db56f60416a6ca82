"""A thread that begins, ends and can be waited for; and one that is refused before its function runs."""

import _thread
import sys
import threading
import time

import pytest

from hpcgnn.run import watchdog
from hpcgnn.run.watchdog import HelperThread


def test_runs_its_function_once_beside_the_caller_who_can_wait_for_it():
    may_end, called = threading.Event(), []

    def target():
        called.append(threading.get_ident())
        may_end.wait(20)

    thread = HelperThread(target, "a helper")
    thread.start()
    assert thread.is_running
    thread.join(0.05)
    assert thread.is_running
    may_end.set()
    thread.join()
    assert not thread.is_running
    assert len(called) == 1 and called[0] != threading.get_ident()


def test_a_function_that_raises_leaves_nobody_waiting(monkeypatch):
    said, is_said = [], threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", lambda report: (said.append(report.exc_type), is_said.set()))

    def target():
        raise ValueError("of the thread")

    thread = HelperThread(target, "a helper")
    thread.start()
    thread.join()
    assert not thread.is_running
    assert is_said.wait(20) and said == [ValueError]


def test_a_thread_that_dies_before_its_first_line_is_an_error_and_no_endless_wait(monkeypatch):
    monkeypatch.setattr(watchdog, "START_SECONDS", 0.2)
    # As where the interpreter has no memory for the thread's first frame: it ends, and nothing of it has run.
    monkeypatch.setattr(_thread, "start_new_thread", lambda function, arguments: None)
    began = time.monotonic()
    thread = HelperThread(lambda: None, "carrier")
    with pytest.raises(MemoryError, match="thread carrier could not begin"):
        thread.start()
    thread.join()
    assert not thread.is_running
    assert time.monotonic() - began < 20
