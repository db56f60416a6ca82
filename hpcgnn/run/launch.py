"""Start and end of a parallel run: MPI, its communicator, cores, memory, and failures of single ranks.

`run_parallel(body)` starts MPI, shares out cores and calls `body(comm)` on every rank. If rank 2 of 4 fails alone, it
prints "hpcgnn: rank 2: ..." and aborts the other three, which would otherwise wait for it forever. Steps that may fail
on one rank run in `together`: all ranks then learn of the failure and raise the same CollectiveError, so that every
rank ends by itself. `join` does the same for a user's own program.

A process that no launcher started with others needs no MPI library: without one, it is the only rank, and
`hpcgnn.run.alone` takes the place of MPI.

Import it before torch: OpenMP reads the thread count once.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import importlib.util
import os
import platform
import pwd
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import mpi4py

from hpcgnn.errors import CollectiveError, HpcgnnError, TrainingError, exit_code_of, explanation_of, is_without_mpi
from hpcgnn.run.process import (
    THREAD_VARIABLES,
    WAITING,
    is_by_torchrun,
    is_launched_with_others,
    launched_size,
    stat_of,
    usable_cores,
)
from hpcgnn.run.watchdog import HERE, WATCHDOG, Colleague, say, words_folder

if TYPE_CHECKING:
    import torch


mpi4py.rc.thread_level = "multiple"    # for the carrier of asynchronous messages
if "HOME" not in os.environ:           # Open MPI does not start without one
    try:
        os.environ["HOME"] = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        os.environ["HOME"] = tempfile.gettempdir()
joined: AbstractContextManager[None] = nullcontext()
if is_by_torchrun():      # which tells MPI nothing about the other ranks
    from hpcgnn.run.torchrun import joined_by_mpi

    joined = joined_by_mpi()
with joined:
    try:
        import mpi4py.MPI  # rc must be set first
    except (RuntimeError, ImportError) as error:
        if not is_without_mpi(error) or is_launched_with_others():
            raise
        from hpcgnn.run import alone

        sys.modules["mpi4py.MPI"] = mpi4py.MPI = alone
    from mpi4py import MPI


Result = TypeVar("Result")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4    # from glibc's malloc.h
KEPT = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}
GIVEN_BACK = {M_MMAP_MAX: 1 << 16, M_TRIM_THRESHOLD: 1 << 17}    # glibc's defaults
FAREWELL = 1                             # tag of the message of a rank that ends
SECONDS_BETWEEN_LOOKS = 1.0
INTERRUPT_GRACE = 0.5                    # seconds in which rank 0 prints first


def run_parallel(body: Callable[[MPI.Comm], Result]) -> Result:
    """Collective: run `body(comm)` on every rank; a failure on any rank ends all of them.

    Any other exception than those below is printed with the rank's number, then MPI_Abort ends all ranks.

    Parameters
    ----------
    body : function            takes the communicator of all ranks

    Returns
    -------
    what `body` returns, on each rank its own

    Raises
    ------
    CollectiveError            all ranks raised it in `body`; and any error of `body` if there is one rank
    TrainingError              a launcher of another MPI started the ranks, so each believes that it is alone
    """
    begin_mpi()
    comm = MPI.COMM_WORLD
    check_joined(comm.size)
    share_cores(comm)
    keep_freed_memory()
    try:
        return body(comm)
    except CollectiveError:
        raise
    except BaseException as error:
        if comm.size == 1:
            raise
        if isinstance(error, KeyboardInterrupt) and comm.rank:
            # All ranks of a terminal get the signal; the first to print ends the others.
            time.sleep(INTERRUPT_GRACE)
        say(f"hpcgnn: rank {comm.rank}: {explanation_of(error)}\n")
        exit_code = exit_code_of(error)
        comm.Abort(exit_code)
        # MPICH's Abort returns before the launcher ends this rank; the rank must not report its failure a second time.
        os._exit(exit_code)
    finally:
        WATCHDOG.stop()


def join(comm: MPI.Comm | None = None) -> MPI.Comm:
    """Collective: prepare a user's own program and return its communicator (default: all ranks).

    Shares out cores, and makes an uncaught exception on one rank end all ranks. Raises TrainingError as `begin_mpi` and
    `check_joined`.
    """
    begin_mpi()
    comm = MPI.COMM_WORLD if comm is None else comm
    if not isinstance(sys.excepthook, EndAllRanks):
        check_joined(MPI.COMM_WORLD.size)
        share_cores(comm)
        keep_freed_memory()
        sys.excepthook = EndAllRanks(getattr(sys.excepthook, "show", sys.excepthook))
    if comm.size > 1 and comm.Get_attr(attendance_key()) is None:
        attendance = Attendance(comm)
        comm.Set_attr(attendance_key(), attendance)
        atexit.register(attendance.leave)
    return comm


def begin_mpi() -> None:
    """Start MPI if not started yet, for example because of mpi4py.rc.initialize = False; MPI ends with the program.

    Raises TrainingError if MPI has already ended, since it can't start twice.
    """
    if MPI.Is_finalized():
        raise TrainingError("MPI has been ended (MPI.Finalize) before this call of hpcgnn, and can't be started again "
                            "in one process; end it after the last call")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        atexit.register(_end_mpi)


def _end_mpi() -> None:
    if not MPI.Is_finalized():
        MPI.Finalize()


@cache
def attendance_key() -> int:
    # Made at first use, since this module can be imported before MPI starts.
    return MPI.Comm.Create_keyval()


class Attendance:
    """Collective: duplicates `comm`, and knows which ranks have ended, so that `check_present` does not wait for them.

    A rank that ends normally sends the number of its meetings to rank 0; rank 0, when it ends, sends its number to all.
    A receiver in a meeting sees from it whether the sender has been there. A rank on the same machine that was killed,
    or left by os._exit, is detected by its missing process.
    """

    def __init__(self, comm: MPI.Comm):
        self._comm = comm.Dup()
        mine = Colleague(platform.node(), os.getpid())
        self._colleagues = self._comm.allgather(mine)
        self._near = [rank for rank, other in enumerate(self._colleagues) if other.host == mine.host and other != mine]
        self._told: list[MPI.Request] = []
        self._num_met = array.array("q", [0])
        self._ended: dict[int, int] = {}      # rank -> number of meetings

    def leave(self) -> None:
        """Tell the others that this rank ends; called when its program exits."""
        if not MPI.Is_finalized():
            others = range(1, self._comm.size) if self._comm.rank == 0 else (0,)
            self._told = [self._comm.Isend(self._num_met, rank, FAREWELL) for rank in others]

    def meet(self, where: str) -> None:
        """Collective: wait for all ranks, or raise TrainingError if one has ended instead."""
        here, status, looked = self._comm.Ibarrier(), MPI.Status(), time.monotonic()
        self._num_met[0] += 1
        while not here.Test():
            if self._comm.Iprobe(MPI.ANY_SOURCE, FAREWELL, status):
                met = array.array("q", [0])
                self._comm.Recv(met, status.source, FAREWELL)
                self._ended[status.source] = met[0]
            for rank, num_met in self._ended.items():
                if num_met < self._num_met[0]:
                    raise TrainingError(self._sentence(rank, where))
            if time.monotonic() > looked + SECONDS_BETWEEN_LOOKS:
                looked = time.monotonic()
                gone = [rank for rank in self._near if not _is_there(self._colleagues[rank].process)]
                if gone and not here.Test():
                    raise TrainingError(self._sentence(gone[0], where))
            time.sleep(0.001)

    def _sentence(self, rank: int, where: str) -> str:
        host, process = self._colleagues[rank]
        return (f"rank {rank} ({host}, process {process}) has ended without coming to {where}, where rank "
                f"{self._comm.rank} waits; all ranks must make this call")


def _is_there(process: int) -> bool:
    try:
        return stat_of(process)[0] not in "ZX"
    except OSError:
        return not Path("/proc/self/stat").exists()      # no /proc: nothing is known


def check_present(comm: MPI.Comm, where: str) -> None:
    """Collective: wait for all ranks of a call; if one has ended, print that and end all."""
    attendance = comm.Get_attr(attendance_key()) if comm.size > 1 else None
    if not isinstance(attendance, Attendance):
        return
    try:
        attendance.meet(where)
    except TrainingError as error:
        end_all_ranks(comm, error, where)


def end_all_ranks(comm: MPI.Comm, error: BaseException, where: str) -> None:
    """End all ranks, because this one leaves a call while the others are in it; do nothing on a single rank."""
    if comm.size == 1:
        return
    how = f"sys.exit({error.code})" if isinstance(error, SystemExit) else "a KeyboardInterrupt"
    sentence = str(error) if isinstance(error, HpcgnnError) else f"{how} has ended this rank inside {where}, and so all"
    say(f"hpcgnn: rank {comm.rank}: {sentence}\n")
    status = exit_code_of(error)
    comm.Abort(status)
    os._exit(status)        # MPICH's Abort may return, see `run_parallel`


@dataclass(frozen=True)
class EndAllRanks:
    """Exception hook: show the uncaught error as Python does, then end all ranks with its exit status.

    For a CollectiveError, only rank 0 shows the text, and every rank exits by itself.
    """

    show: Callable[..., None]

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        is_over = MPI.Is_finalized()      # ended by the program itself
        world = None if is_over else MPI.COMM_WORLD
        is_shared = isinstance(error, CollectiveError)
        if is_over or world.rank == 0 or not is_shared:
            self.show(kind, error, traceback)
        if not is_over and world.size > 1 and not is_shared:
            sys.stderr.flush()
            world.Abort(exit_code_of(error))
            os._exit(exit_code_of(error))       # MPICH's Abort may return, see `run_parallel`
        raise SystemExit(exit_code_of(error))      # Python ends with 1 otherwise, and job scripts look for 75


def watch(comm: MPI.Comm, timeout: float) -> None:
    """Collective: end the job when a rank makes no progress for `timeout` seconds (0: never).

    Until `watch_closely`, the limit is at least 300 seconds. `run_parallel` stops the watch.
    """
    WATCHDOG.start(comm.rank, comm.allgather(Colleague(platform.node(), os.getpid())), timeout)


def watch_closely(comm: MPI.Comm, timeout: float, folder: Path | None = None) -> None:
    """Collective: start-up is over, so apply the timeout; watchdogs talk in `folder` if all ranks see it."""
    if comm.rank == 0 and folder is not None:
        shutil.rmtree(words_folder(folder), ignore_errors=True)
    comm.Barrier()
    is_shared = all(comm.allgather(folder is not None and folder.is_dir()))
    WATCHDOG.look_closely(timeout, folder if is_shared else None)


def has_mpi() -> bool:
    """Whether there is an MPI library; without one, this process is the only rank."""
    return MPI.__name__ == "mpi4py.MPI"


def has_company() -> bool:
    return MPI.COMM_WORLD.size > 1


def check_joined(num_ranks: int) -> None:
    """Raise TrainingError, with a remedy, for ranks that a launcher started together but MPI did not connect."""
    variable, started = launched_size()
    if num_ranks > 1 or not started.isdecimal() or int(started) <= 1:
        return
    library = MPI.Get_library_version().partition(",")[0].split("\n")[0].strip("\0 ")
    raise TrainingError(f"{started} ranks were started ({variable}), but {library} finds each alone, since it does not "
                        f"speak the launcher's protocol; {_remedy_for(variable)}")


def _remedy_for(variable: str) -> str:
    if variable == "WORLD_SIZE":
        return ("under torchrun use MPICH (pip install mpich, MPI4PY_MPIABI=mpich) and import hpcgnn before mpi4py, or "
                "start the ranks by the mpirun of that library")
    if variable.startswith("SLURM") or "SLURM_STEP_ID" in os.environ:
        return "srun --mpi=list shows what Slurm offers: --mpi=pmix suits Open MPI, --mpi=pmi2 MPICH and Intel MPI"
    return "use the mpirun of that library"


def together(comm: MPI.Comm, step: Callable[[], Result]) -> Result:
    """Collective: run a step that each rank does alone; if any rank fails, all raise CollectiveError.

    Parameters
    ----------
    comm : MPI communicator
    step : function            called without arguments; it calls no MPI

    Returns
    -------
    what `step` returns, on each rank its own

    Raises
    ------
    CollectiveError            some rank raised an HpcgnnError; it names the lowest such rank, and has its text
    """
    result, failure = None, None
    HERE.note("does a step of its own")
    try:
        result = step()
    except HpcgnnError as error:
        failure = str(error)
    HERE.note("waits for all ranks to end a step")
    failures = words_of_all(comm, failure)
    HERE.note("goes on")
    if not failures:
        return result
    failed = [rank for rank, sentence in enumerate(failures) if sentence is not None]
    sentence = failures[failed[0]]
    everywhere = len(failed) == comm.size and all(other == sentence for other in failures)
    raise CollectiveError(sentence if everywhere else f"rank {failed[0]}: {sentence}")


def told_by_rank_zero(comm: MPI.Comm, step: Callable[[], Result]) -> Result:
    """Collective: run a step on rank 0; all ranks return its result, or raise its error as CollectiveError."""
    result, failure = None, None
    if comm.rank == 0:
        try:
            result = step()
        except HpcgnnError as error:
            failure = str(error)
    HERE.note("waits for what rank 0 has read")
    result, failure = comm.bcast((result, failure))
    HERE.note("goes on")
    if failure is not None:
        raise CollectiveError(failure)
    return result


def words_of_all(comm: MPI.Comm, word: str | None) -> list[str | None]:
    """Collective: each rank's text in rank order, or an empty list if no rank has one."""
    # Nearly always there is no text; then one small allreduce is the whole cost.
    return comm.allgather(word) if comm.allreduce(int(word is not None), MPI.MAX) else []


def choose_device(comm: MPI.Comm, name: str) -> torch.device:
    """Collective: return this rank's device, for the name "cpu" or "cuda".

    Ranks of a node take its visible GPUs in turn; with more ranks than GPUs, several share one.

    Raises CollectiveError for cuda if a rank has no GPU that torch and cupy can use.
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
    """Collective: give each rank of a node an equal share of the node's cores.

    Environment variables that the user has set stay, and a set OMP_NUM_THREADS holds for all thread pools.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores = set().union(*node.allgather(usable_cores()))
    # It may be a list with one number per level of nested regions.
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0] or str(max(1, len(cores) // node.size))
    node.Free()
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, threads)
    own_policy = "OMP_WAIT_POLICY" in os.environ      # then the spinning is not changed
    for name, value in WAITING.items():
        if not (own_policy and name == "GOMP_SPINCOUNT"):
            os.environ.setdefault(name, value)
    # If torch is already imported, it has read its variables, so it is told directly.
    if "torch" in sys.modules and threads.isdecimal() and int(threads) > 0:
        sys.modules["torch"].set_num_threads(int(threads))


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory, since the same blocks come again in every epoch."""
    # A block that went back to the system costs one page fault per 4 KiB when it is allocated again.
    _set_malloc(KEPT)


@contextmanager
def giving_back_freed_memory() -> Iterator[None]:
    """Within the block, let glibc return freed memory to the system, as large one-off reads need."""
    _set_malloc(GIVEN_BACK)
    try:
        yield
    finally:
        malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if malloc_trim is not None:
            malloc_trim(0)
        keep_freed_memory()


def _set_malloc(options: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)
