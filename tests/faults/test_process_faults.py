"""Faults as a shell sees them: a signal, a rank that dies or fails alone, a wrong start; all ranks go, nothing is lost.

Each run is an mpirun of its own. How long every one took is printed; pytest -rP shows it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fork_server import served
from parallel_run import ENDING_LIMIT, ParallelRun, hpcgnn, is_open_mpi, run_parallel_command
from training_setup import (
    arcs_where,
    assert_same_bits,
    easy_graph,
    losses,
    random_owner,
    snapshot,
    without_seconds,
    write,
)

from hpcgnn.run.signals import STOP_SIGNALS
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.run_folder import RunFolder

EPOCHS, CHECKPOINT_EVERY = 40, 5
# Epochs of some milliseconds, so that a signal meets the run in the middle.
GRAPH = "synthetic:nodes=3000,mean_degree=20,classes=4,features=32,signal=2"
FLAGS = ["--model", "sage", "--layers", 3, "--hidden", 64, "--dropout", 0.5, "--method", "uniform", "--bits", 8,
         "--epochs", EPOCHS, "--eval-every", 20, "--checkpoint-every", CHECKPOINT_EVERY]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two parts, which no test may change."""
    dataset = easy_graph(spec=GRAPH)
    folder = write(dataset, random_owner(dataset, 2), 2, tmp_path_factory.mktemp("shards"))
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before


@pytest.fixture(scope="module")
def whole(shards, tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    ended = run_parallel_command(2, hpcgnn("train", shards, *FLAGS, "--out", "run"), folder)
    assert (ended.status, ended.sentences) == (0, []), ended.stderr
    return folder / "run"


def disturb(shards, folder, num_epochs, how):
    """Begin or resume, call how(run) when `num_epochs` are recorded; how mpirun ended, in time and with all ranks."""
    metrics = folder / "run" / "metrics.jsonl"
    command = ["-m", "hpcgnn", "train", shards, *FLAGS, "--out", "run", "--resume"]
    with ParallelRun(2, served(command), folder) as run:
        run.wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= num_epochs)
        ranks = run.ranks()
        assert list(ranks) == [0, 1]
        disturbed = time.monotonic()
        how(run, ranks)
        ended = run.end()
        assert not run.left(ranks)
        seconds = time.monotonic() - disturbed
    print(f"all ended {seconds:.1f} s after the disturbance, status {ended.status}: {ended.sentences}")
    assert seconds < ENDING_LIMIT
    return ended


def assert_resumes(shards, folder, whole):
    """`--resume` ends with the weights, moments and metrics of the undisturbed run, bit for bit."""
    resumed = run_parallel_command(2, hpcgnn("train", shards, "--out", "run", "--resume"), folder)
    assert (resumed.status, resumed.sentences) == (0, []), resumed.stderr
    assert_same_bits(folder / "run/checkpoint.h5", whole / "checkpoint.h5")
    found, expected = (without_seconds(RunFolder(path).read_metrics()) for path in (folder / "run", whole))
    assert found == expected


def usr1_to_mpirun(run, ranks):
    run.process.send_signal(signal.SIGUSR1)


def term_to_one_rank(run, ranks):
    os.kill(ranks[1], signal.SIGTERM)


def term_to_mpirun(run, ranks):
    run.process.send_signal(signal.SIGTERM)


def kill_one_rank(run, ranks):
    os.kill(ranks[1], signal.SIGKILL)


@pytest.mark.parametrize("how", [usr1_to_mpirun, pytest.param(term_to_one_rank, marks=pytest.mark.long)])
def test_a_run_that_a_signal_stopped_and_then_a_killed_rank_ended_resumes(shards, whole, tmp_path, how):
    ended = disturb(shards, tmp_path, 8, how)
    stopped = read_checkpoint(tmp_path / "run/checkpoint.h5").progress
    assert 8 <= stopped.epoch < EPOCHS
    assert ended.status == 75
    assert ended.sentences == [f"hpcgnn: stopped by a signal after epoch {stopped.epoch} of seed 0; run/checkpoint.h5 "
                               "holds everything, the same command with --resume goes on"]
    assert not (tmp_path / "run/summary.json").exists()

    reached = stopped.epoch + CHECKPOINT_EVERY
    assert disturb(shards, tmp_path, reached, kill_one_rank).status != 0
    stopped = read_checkpoint(tmp_path / "run/checkpoint.h5").progress
    assert stopped.epoch > reached - CHECKPOINT_EVERY and stopped.epoch % CHECKPOINT_EVERY == 0
    assert_resumes(shards, tmp_path, whole)


def has_handler(pid, number):
    """Whether a process has a handler of its own for a signal."""
    (caught,) = (line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                 if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def is_python(pid):
    return Path(f"/proc/{pid}/comm").read_text().startswith("python")


def send_early(number, is_ready, shards, folder, num_ranks, command=()):
    """Train, and send each rank a signal as soon as is_ready(pid): the run ends before it begins."""
    with ParallelRun(num_ranks, [*command, *hpcgnn("train", shards, *FLAGS, "--out", "run")], folder) as run:
        run.wait_for(lambda: len(run.ranks()) == num_ranks)
        for pid in run.ranks().values():
            run.wait_for(lambda pid=pid: is_ready(pid))
            os.kill(pid, number)
        ended = run.end()
    assert ended.status == 75, ended.stderr
    assert ended.sentences == ["hpcgnn: stopped by a signal before the first epoch; nothing is lost, the same command "
                               "with --resume goes on"]
    assert not list((folder / "run").glob("[!.]*"))


def assert_begins(shards, folder, whole):
    """`--resume` of a run that has no epoch begins as the undisturbed one, with the same losses to the last bit."""
    begins = hpcgnn("train", shards, *FLAGS, "--epochs", 5, "--out", "run", "--resume")
    resumed = run_parallel_command(2, begins, folder)
    assert resumed.status == 0, resumed.stderr
    found, expected = (losses(RunFolder(path).read_metrics()) for path in (folder / "run", whole))
    assert len(found) == 5 and found.tolist() == expected[:5].tolist()


@pytest.mark.long      # a signal that was held back comes as early
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_before_any_library_is_loaded_ends_the_run_in_order(shards, whole, tmp_path, number):
    def is_ready(pid):
        # In this order: a process goes on between two looks at it.
        loaded = Path(f"/proc/{pid}/maps").read_text()
        is_handled = has_handler(pid, signal.SIGUSR1)
        assert is_handled or not any(library in loaded for library in ("libtorch", "libmpi", "hdf5"))
        return is_handled

    send_early(number, is_ready, shards, tmp_path, 2)
    if number == STOP_SIGNALS[0]:       # all signals leave the same: a folder without files
        assert_begins(shards, tmp_path, whole)


def test_a_signal_that_the_launcher_held_back_is_answered(tmp_path):
    """It waits from the start of Python to the first handler, where it would kill the rank otherwise."""
    dataset = easy_graph()
    shards = write(dataset, random_owner(dataset, 1), 1, tmp_path / "shards")
    send_early(signal.SIGUSR1, is_python, shards, tmp_path, 1, ["env", "--block-signal=USR1"])


@pytest.mark.long
def test_a_second_signal_changes_nothing(shards, whole, tmp_path):
    def twice(run, ranks):
        usr1_to_mpirun(run, ranks)
        time.sleep(0.01)
        usr1_to_mpirun(run, ranks)

    assert disturb(shards, tmp_path, 8, twice).status == 75
    assert_resumes(shards, tmp_path, whole)


@pytest.mark.long
def test_term_to_mpirun_loses_no_more_than_the_epochs_since_the_last_checkpoint(shards, whole, tmp_path):
    """Open MPI hands SIGTERM on and kills the ranks half a second later; MPICH lets them write their checkpoint."""
    ended = disturb(shards, tmp_path, 14, term_to_mpirun)
    assert ended.status == 75 or (is_open_mpi() and ended.status != 0)
    assert read_checkpoint(tmp_path / "run/checkpoint.h5").progress.epoch >= 10
    assert_resumes(shards, tmp_path, whole)


FAILING_CARRIER = """
import time
from hpcgnn.run.launch import run_parallel

def body(comm):
    from hpcgnn.errors import KernelError
    from hpcgnn.exchange.carrier import Carrier

    carrier = Carrier(comm, "thread")
    if comm.rank == 1:
        def fail():
            raise KernelError("the line is cut")
        carrier._advance = fail
        carrier._has_work.set()
        time.sleep(600)
    comm.Barrier()

run_parallel(body)
"""


def test_what_goes_wrong_in_the_thread_of_a_carrier_ends_all_ranks_with_a_sentence(tmp_path):
    ended = run_parallel_command(2, [sys.executable, "-c", FAILING_CARRIER], tmp_path)
    assert ended.status != 0
    assert ended.sentences == ["hpcgnn: rank 1: messages can't be carried: the line is cut"]
    assert ended.seconds < ENDING_LIMIT + 10


@pytest.mark.parametrize("flags", [
    pytest.param(["--method", "uniform", "--bits", 8], id="uniform"),
    pytest.param(["--method", "adaqp", "--set", "predict=previous"], id="adaqp", marks=pytest.mark.long)])
def test_a_rank_that_fails_alone_takes_all_down_and_says_so_first(tmp_path, flags):
    """A huge feature on rank 1 makes a message that its codes can't hold, at the first exchange of training."""
    whole = easy_graph()
    owner = random_owner(whole, 2)
    # Arcs lead from rank 1 to rank 0 only, so rank 0 sends no message forward that could fail first.
    dataset = arcs_where(whole, lambda source, target: owner[source] >= owner[target])
    crossing = arcs_where(whole, lambda source, target: owner[source] > owner[target])
    features = dataset.features.copy()
    features[crossing.indices[0]] = 3e38
    write(replace(dataset, features=features), owner, 2, tmp_path / "shards")
    before = snapshot(tmp_path / "shards")
    ended = run_parallel_command(2, hpcgnn(
        "train", "shards", "--model", "sage", *flags, "--norm", "none", "--dropout", 0, "--layers", 3, "--hidden", 64,
        "--out", "run"), tmp_path)
    assert ended.status != 0
    (sentence,) = ended.sentences
    assert sentence.startswith(f"hpcgnn: rank 1: message row of node {crossing.indices[0]} (layer 0, epoch 0")
    assert sentence.endswith("holds a value that is NaN, infinite or too large to quantize; lower the learning rate")
    assert ended.seconds < ENDING_LIMIT
    assert snapshot(tmp_path / "shards") == before


def test_a_wrong_start_ends_all_ranks_with_one_sentence(shards, tmp_path):
    ended = run_parallel_command(3, hpcgnn("train", shards, "--out", "run"), tmp_path)
    assert ended.status == 1
    assert len(ended.sentences) == 1 and "was partitioned into 2 parts but 3 ranks" in ended.sentences[0]
