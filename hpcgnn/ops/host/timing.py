"""Seconds of a piece of work on this machine, by which a choice between kernels is made."""

from __future__ import annotations

import time
from collections.abc import Callable


def least_seconds(work: Callable[[], object], repetitions: int) -> float:
    """Return the least seconds of some repetitions, after one that is not timed: what work takes undisturbed."""
    work()
    seconds = []
    for _ in range(repetitions):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
