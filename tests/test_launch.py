"""The start of a parallel run: an error that all share ends all in order, one that a rank has alone takes all down."""

from __future__ import annotations

import importlib.util
import os
import platform
import select
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from mpi4py import MPI
from parallel_run import ENDING_LIMIT, run_parallel_command

from hpcgnn.errors import CollectiveError, ShardError, TrainingError, sentence_of
from hpcgnn.run import launch
from hpcgnn.run.launch import Attendance, choose_device, run_parallel, share_cores, together
from hpcgnn.run.process import THREAD_VARIABLES


def failing_on(ranks, sentence="the shard is missing"):
    def step():
        if MPI.COMM_WORLD.rank in ranks:
            raise ShardError(sentence)
        return MPI.COMM_WORLD.rank

    return step


FREED = """
import os
import numpy as np
from hpcgnn.run.launch import giving_back_freed_memory, keep_freed_memory

def kept_of_a_block():
    before = resident()
    np.ones(8 << 20)
    return resident() - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

keep_freed_memory()
with giving_back_freed_memory():
    within = kept_of_a_block()
print(within, kept_of_a_block())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_what_is_freed_goes_back_while_a_graph_is_opened_and_is_kept_after():
    """Of a block of 64 MiB."""
    ended = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True)
    within, after = map(int, ended.stdout.split())
    assert within < 2 << 20 < 60 << 20 < after


def test_mpi_is_started_where_a_program_has_not_and_never_twice(monkeypatch):
    """As after mpi4py.rc.initialize = False: a call before MPI's start, or after its end, would end the process."""
    done, at_exit, shown = [], [], []
    monkeypatch.setattr(launch, "MPI", SimpleNamespace(
        Is_initialized=lambda: "start" in done, Is_finalized=lambda: "end" in done, THREAD_MULTIPLE=3,
        Init_thread=lambda level: done.append("start"), Finalize=lambda: done.append("end")))
    monkeypatch.setattr(launch.atexit, "register", at_exit.append)
    launch.begin_mpi()
    launch.begin_mpi()
    assert done == ["start"]
    for step in [*at_exit, *at_exit]:
        step()
    assert done == ["start", "end"]
    for enter in (launch.begin_mpi, launch.join, lambda: launch.run_parallel(lambda comm: None)):
        with pytest.raises(TrainingError, match=r"MPI has been ended \(MPI.Finalize\) before this call of hpcgnn"):
            enter()
    with pytest.raises(SystemExit):
        launch.EndAllRanks(lambda *error: shown.append(error[0]))(KeyError, KeyError("x"), None)
    assert shown == [KeyError]


@pytest.mark.parallel([1, 2, 3, 4])
def test_together_returns_each_rank_its_own_result():
    assert together(MPI.COMM_WORLD, failing_on([])) == MPI.COMM_WORLD.rank


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("first", [0, 1])
def test_together_raises_the_first_ranks_sentence_everywhere(first):
    comm = MPI.COMM_WORLD
    with pytest.raises(CollectiveError) as raised:
        together(comm, failing_on(range(first, comm.size), f"rank {comm.rank} found nothing"))
    assert str(raised.value) == f"rank {first}: rank {first} found nothing"


@pytest.mark.parallel([1, 2, 3])
def test_together_names_no_rank_where_all_say_the_same():
    with pytest.raises(CollectiveError) as raised:
        together(MPI.COMM_WORLD, failing_on(range(MPI.COMM_WORLD.size)))
    assert str(raised.value) == "the shard is missing"


@pytest.mark.parallel([1, 2, 3])
def test_an_error_that_all_ranks_share_leaves_mpi_working():
    comm = MPI.COMM_WORLD

    def body(same):
        raise CollectiveError(f"all {same.size} ranks")

    with pytest.raises(CollectiveError, match=f"all {comm.size} ranks"):
        run_parallel(body)
    assert comm.allreduce(1) == comm.size


@pytest.mark.parallel([1, 2, 4])
def test_cores_are_shared_out_and_the_users_choice_stays(monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    told = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)      # which has read its variables long ago
    share_cores(MPI.COMM_WORLD)
    cores = set().union(*MPI.COMM_WORLD.allgather(os.sched_getaffinity(0)))
    assert os.environ["OMP_NUM_THREADS"] == str(max(1, len(cores) // MPI.COMM_WORLD.size))
    assert told == [int(os.environ["OMP_NUM_THREADS"])]
    assert os.environ["MKL_NUM_THREADS"] == "7"


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("chosen, expected", [("3", "3"), ("3,2", "3")])
def test_a_number_of_openmp_threads_holds_for_all_pools(monkeypatch, chosen, expected):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    told = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    share_cores(MPI.COMM_WORLD)
    assert told == [3]
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"]) == (chosen, expected)
    assert os.environ["MKL_NUM_THREADS"] == "7"


class GPUs:
    """What torch.cuda says of a machine; remembers the device that was made current."""

    def __init__(self, monkeypatch, num_gpus, is_built=True, has_cupy=True):
        self.current = None
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_built)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(self, "current", device))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if has_cupy else None)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("num_gpus", [1, 2, 3, 8])
def test_ranks_of_a_node_take_its_gpus_in_turn(monkeypatch, num_gpus):
    gpus = GPUs(monkeypatch, num_gpus)
    device = choose_device(MPI.COMM_WORLD, "cuda")
    assert device == gpus.current == torch.device("cuda", MPI.COMM_WORLD.rank % num_gpus)


@pytest.mark.parallel([2, 3])
def test_a_rank_that_was_given_one_gpu_takes_that_one(monkeypatch):
    """As Slurm does with a GPU a task: every rank sees another one, as its first."""
    GPUs(monkeypatch, 1)
    assert choose_device(MPI.COMM_WORLD, "cuda") == torch.device("cuda", 0)


@pytest.mark.parallel([1, 2, 3])
def test_the_host_is_no_gpu(monkeypatch):
    gpus = GPUs(monkeypatch, 4)
    assert choose_device(MPI.COMM_WORLD, "cpu") == torch.device("cpu") and gpus.current is None


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("num_gpus, is_built, has_cupy, reason", [
    (0, False, True, f"torch {torch.__version__} was built without CUDA"),
    (0, True, True, "torch finds no GPU with CUDA_VISIBLE_DEVICES=7"),
    (2, True, False, "cupy, which compiles the kernels, is not installed (pip install 'hpcgnn[cuda13]')"),
])
def test_a_gpu_that_is_missing_is_one_sentence_on_all_ranks(monkeypatch, num_gpus, is_built, has_cupy, reason):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    GPUs(monkeypatch, num_gpus, is_built, has_cupy)
    with pytest.raises(CollectiveError) as refused:
        choose_device(MPI.COMM_WORLD, "cuda")
    assert str(refused.value) == f"device cuda can't be used: {reason}; use --device cpu"


@pytest.mark.parallel([2, 3])
def test_one_rank_without_a_gpu_stops_all(monkeypatch):
    GPUs(monkeypatch, 0 if MPI.COMM_WORLD.rank == 1 else 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(CollectiveError) as refused:
        choose_device(MPI.COMM_WORLD, "cuda")
    assert str(refused.value) == "rank 1: device cuda can't be used: torch finds no GPU; use --device cpu"


FAILING_RANK = """
import time
from hpcgnn.errors import KernelError
from hpcgnn.run.launch import run_parallel

def body(comm):
    if comm.rank == 1:
        time.sleep(0.3)
        raise {error}
    comm.recv(source=1)

run_parallel(body)
"""


@pytest.mark.parametrize("error, sentence", [
    ("KernelError('a value is NaN')", "hpcgnn: rank 1: a value is NaN"),
    ("ValueError('no')", "hpcgnn: rank 1: this is a bug of hpcgnn, please report it with the lines below: "
     "ValueError: no"),
])
def test_a_rank_that_raises_takes_all_down_with_its_rank_first(tmp_path, error, sentence):
    ended = run_parallel_command(2, [sys.executable, "-c", FAILING_RANK.format(error=error)], tmp_path)
    assert ended.sentences == [sentence]
    assert ended.status != 0
    assert ("Traceback" in ended.stderr) == error.startswith("Value")
    assert ended.seconds < ENDING_LIMIT


@pytest.mark.parametrize("seconds_to_read", [0.0, 0.5])
def test_a_failing_rank_waits_until_what_it_said_was_read(seconds_to_read):
    program = ("import time; from hpcgnn.run.watchdog import say; start = time.monotonic(); "
               "say('hpcgnn: rank 3: no\\n'); print(time.monotonic() - start)")
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    select.select([process.stderr], [], [])
    time.sleep(seconds_to_read)
    said, waited = process.stderr.read(), float(process.stdout.read())
    process.wait()
    assert said == b"hpcgnn: rank 3: no\n"
    assert waited >= seconds_to_read


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_that_has_ended_is_not_waited_for(leaver):
    comm = MPI.COMM_WORLD
    attendance = Attendance(comm)
    attendance.meet("the first call")
    if comm.rank == leaver:
        attendance.leave()
    elif comm.rank == 0 or leaver == 0:
        with pytest.raises(TrainingError, match=rf"rank {leaver} \(.*\) has ended without coming to hpcgnn.fit, where "
                                                rf"rank {comm.rank} waits; all ranks must make this call"):
            attendance.meet("hpcgnn.fit")
    comm.Barrier()
    if comm.rank == leaver or 0 < leaver != comm.rank > 0:
        attendance._comm.Ibarrier().Wait()      # completes that of the others, which have given up


@pytest.mark.parallel([2])
def test_a_rank_that_ends_after_a_meeting_has_come_to_it():
    comm = MPI.COMM_WORLD
    attendance = Attendance(comm)
    if comm.rank == 1:
        attendance.meet("hpcgnn.fit")
        attendance.leave()
    else:
        # The farewell is there before the barrier is looked at.
        attendance._ended[1] = 1
        attendance.meet("hpcgnn.fit")
        with pytest.raises(TrainingError, match=r"rank 1 \(.*\) has ended without coming to the next call"):
            attendance.meet("the next call")
    comm.Barrier()
    if comm.rank == 1:
        attendance._comm.Ibarrier().Wait()      # completes that of rank 0, which has given up


def test_an_abi_that_mpi4py_does_not_know_is_one_sentence(monkeypatch):
    monkeypatch.setenv("MPI4PY_MPIABI", "intelmpi")
    error = ImportError("cannot import name 'MPI' from 'mpi4py' (/x/mpi4py/__init__.py)")
    assert sentence_of(error).startswith("MPI4PY_MPIABI is 'intelmpi', for which mpi4py has no build; set it to ")
