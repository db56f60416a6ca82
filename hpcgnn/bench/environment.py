"""The environment of a measurement: threads, waiting, allocator.

It must be set before NumPy and torch load, so this file imports neither. `call_in_child` runs functions that need them
in a new process: the caller stays small, because a child's peak memory begins with its parent's.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from hpcgnn.run.process import THREAD_VARIABLES, WAITING

ALLOCATORS = ("tcmalloc_minimal", "tcmalloc")
# glibc's own malloc, told to keep what is freed and to ask for huge pages.
GLIBC_TUNABLES = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184"


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_tcmalloc() -> str | None:
    """Library name of tcmalloc, as the loader takes it; None if it is not installed."""
    found = (ctypes.util.find_library(name) for name in ALLOCATORS)
    return next((name for name in found if name), None)


def thread_environment(num_threads: int, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (or this process's environment) with `num_threads` threads in every runtime, and idle threads asleep."""
    base = os.environ if base is None else base
    return {**base, **dict.fromkeys(THREAD_VARIABLES, str(num_threads)), **WAITING}


def with_tcmalloc(environment: Mapping[str, str]) -> dict[str, str]:
    library = find_tcmalloc()
    if library is None:
        return dict(environment)
    others = [name for name in environment.get("LD_PRELOAD", "").split(":") if name and "tcmalloc" not in name]
    return {**environment, "LD_PRELOAD": ":".join([library, *others])}


def with_kept_memory(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which glibc keeps freed memory and uses huge pages, so that all work reuses warm pages."""
    return {"GLIBC_TUNABLES": GLIBC_TUNABLES, **environment}


def allocator_name(environment: Mapping[str, str] | None = None) -> str:
    environment = os.environ if environment is None else environment
    if "tcmalloc" in environment.get("LD_PRELOAD", ""):
        return "tcmalloc"
    return "glibc, memory kept" if "glibc.malloc" in environment.get("GLIBC_TUNABLES", "") else "glibc"


def run_in(environment: Mapping[str, str], program: tuple[str, ...] = ("-m", "hpcgnn")) -> None:
    """Start this program anew in the environment, unless it already runs in it.

    `program` is what Python runs: a module or a script.
    """
    if all(os.environ.get(name) == value for name, value in environment.items()):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *program, *sys.argv[1:]], dict(environment))


def set_environment(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)


def call_in_child(threads: int, function: str, *arguments: Any) -> Any:
    environment = with_kept_memory(thread_environment(threads))
    with ProcessPoolExecutor(1, get_context("spawn"), set_environment, (environment,)) as pool:
        return pool.submit(_call_work, function, *arguments).result()


def _call_work(function: str, *arguments: Any) -> Any:
    from hpcgnn.bench import epoch_work

    return getattr(epoch_work, function)(*arguments)
