"""Start of a parallel run: MPI, threads, and the rule that a rank that fails takes all ranks down at once.

Must be imported before torch, so that the thread count that it chooses is the one that OpenMP reads.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import importlib.util
import os
import stat
import sys
import termios
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO, TypeVar

import mpi4py

mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI  # noqa: E402  (rc must be set first)

from hpcgnn.errors import CollectiveError, HpcgnnError, TrainingError  # noqa: E402
from hpcgnn.threads import THREAD_VARIABLES, WAITING  # noqa: E402

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4    # of glibc's malloc.h


def run_parallel(body: Callable[[MPI.Comm], Result]) -> Result:
    """Collective: run `body(comm)` on every rank; a failure on any rank ends all of them.

    An error that all ranks share (CollectiveError) is raised on, so that each exits in order. Any other exception is
    printed by the rank that met it, with its rank first, and MPI_Abort takes the others down.
    """
    comm = MPI.COMM_WORLD
    share_cores(comm)
    keep_freed_memory()
    try:
        return body(comm)
    except CollectiveError:
        raise
    except BaseException as error:
        if comm.size == 1 and isinstance(error, HpcgnnError):
            raise
        _print_failure(comm.rank, error)
        exit_code = getattr(error, "exit_code", 1)
        comm.Abort(exit_code)
        # MPICH's Abort returns before the launcher ends this rank, which must not report its failure a second time.
        os._exit(exit_code)


def _print_failure(rank: int, error: BaseException) -> None:
    if isinstance(error, HpcgnnError):
        text = f"hpcgnn: rank {rank}: {error}\n"
    else:
        text = f"hpcgnn: rank {rank}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
    sys.stderr.write(text)
    sys.stderr.flush()
    _wait_for_reader(sys.stderr)


def _wait_for_reader(stream: TextIO) -> None:
    """Wait until the launcher has read what was written: Open MPI's drops what still lies in a pipe of an aborted rank.

    At most 2 s, and 0.2 s more in which the launcher passes it on; nothing for a file or a terminal.
    """
    try:
        descriptor = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return
        for _ in range(100):
            unread = array.array("i", [0])
            fcntl.ioctl(descriptor, termios.FIONREAD, unread)
            if unread[0] == 0:
                break
            time.sleep(0.02)
    except (OSError, ValueError):       # closed, or no descriptor
        return
    time.sleep(0.2)


def together(comm: MPI.Comm, step: Callable[[], Result]) -> Result:
    """Collective: run a step that each rank does alone; if it fails anywhere, all ranks raise the first rank's error.

    Raises
    ------
    CollectiveError      with the rank and the sentence of the lowest rank that failed
    """
    result, failure = None, None
    try:
        result = step()
    except HpcgnnError as error:
        failure = str(error)
    failures = comm.allgather(failure)
    failed = [rank for rank, sentence in enumerate(failures) if sentence is not None]
    if not failed:
        return result
    sentence = failures[failed[0]]
    everywhere = len(failed) == comm.size and all(other == sentence for other in failures)
    raise CollectiveError(sentence if everywhere else f"rank {failed[0]}: {sentence}")


def choose_device(comm: MPI.Comm, name: str) -> torch.device:
    """Collective: where this rank computes. Its GPU, of those that CUDA_VISIBLE_DEVICES leaves it, is the one of its
    place among the node's ranks; with more ranks than GPUs, several share one.

    Parameters
    ----------
    name : {"cpu", "cuda"}

    Raises
    ------
    CollectiveError      cuda, and a rank has no GPU that torch and cupy can use
    """
    import torch

    if name == "cpu":
        return torch.device("cpu")
    num_gpus = together(comm, _count_gpus)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    device = torch.device("cuda", node.rank % num_gpus)
    node.Free()
    torch.cuda.set_device(device)
    return device


def _count_gpus() -> int:
    """GPUs that this rank may use.

    Raises
    ------
    TrainingError      none, with the reason
    """
    import torch

    num_gpus, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.backends.cuda.is_built():
        reason = f"torch {torch.__version__} was built without CUDA"
    elif num_gpus == 0:
        reason = "torch finds no GPU" + ("" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible}")
    elif importlib.util.find_spec("cupy") is None:
        reason = "cupy, which compiles the kernels, is not installed (pip install 'hpcgnn[cuda13]')"
    else:
        return num_gpus
    raise TrainingError(f"device cuda can't be used: {reason}; use --device cpu")


def share_cores(comm: MPI.Comm) -> None:
    """Collective: give each rank of a node an equal share of the cores that the node's ranks may use.

    Variables that the user has set stay as they are, and OMP_NUM_THREADS, where it is set, holds for all pools of
    threads: two threads of OpenBLAS on one core wait for each other.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set().union(*node.allgather(usable))
    # It may be a list, of a number for each level of nested regions.
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0] or str(max(1, len(cores) // node.size))
    node.Free()
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, threads)
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)


def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed: what torch allocates beside our arena comes again every epoch, and a block that
    went back to the system costs a page fault every 4 KiB when it returns. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
