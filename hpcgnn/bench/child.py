"""`call_in_child` runs a function of epoch_work, which imports NumPy and torch, in a new process.

The calling process thus stays small. This matters because a child's peak memory begins with its parent's.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from hpcgnn.bench.environment import set_environment, thread_environment, with_kept_memory


def call_in_child(threads: int, function: str, *arguments: Any) -> Any:
    environment = with_kept_memory(thread_environment(threads))
    with ProcessPoolExecutor(1, get_context("spawn"), set_environment, (environment,)) as pool:
        return pool.submit(_call_work, function, *arguments).result()


def _call_work(function: str, *arguments: Any) -> Any:
    from hpcgnn.bench import epoch_work

    return getattr(epoch_work, function)(*arguments)
