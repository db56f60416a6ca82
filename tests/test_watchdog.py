"""A rank that makes no progress ends the job and is named; a slow one, and a job that was suspended, are left alone."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest
from fork_server import served
from parallel_run import ENDING_LIMIT, ParallelRun, hpcgnn, is_running, run_parallel_command
from training_setup import easy_graph, random_owner, write

from hpcgnn.exchange.transfer import waiting
from hpcgnn.run.watchdog import Colleague, Watchdog, Whereabouts, Word

TIMEOUT = 4.0
RESUMING = "; the job ends, a training goes on with --resume (--timeout sets the limit)"


def test_a_place_is_told_with_its_epoch():
    here = Whereabouts()
    here.note(waiting, "exchange {}".format, 7, 2, 3, 2, 0, 1)
    assert here.describe() == "waits for ranks 1 and 0 in round 2 of 3 of exchange 7"
    here.epoch = 5, 17
    here.note("evaluates")
    assert here.describe() == "evaluates in epoch 17 of seed 5"


def test_every_note_is_another_object():
    """The watchdog takes the same object for a rank that has not moved."""
    here, seen = Whereabouts(), []
    for _ in range(3):
        here.note("computes")
        seen.append(here.place)
    assert len({id(place) for place in seen}) == 3


def verdict_of(words):
    watchdog = Watchdog()
    watchdog._timeout, watchdog._colleagues = 60.0, [Colleague(f"n{rank}", 100 + rank) for rank in range(3)]
    return watchdog._verdict(words, [rank for rank in range(3) if rank not in words])


WAITS = "waits for rank 2 in round 1 of 2 of layer 0, forward,"


@pytest.mark.parametrize("words, verdict", [
    ({0: Word(1, WAITS, 61.0), 1: Word(1, "computes", 2.0)},
     f"rank 2 (n2, process 102) has given no sign of life for 60 s; rank 0 {WAITS} since 61 s"),
    ({1: Word(1, WAITS, 61.0)}, "ranks 0 (n0, process 100), 2 (n2, process 102) have given no sign of life for 60 s; "
     f"rank 1 {WAITS} since 61 s"),
    ({0: Word(1, WAITS, 61.0), 1: Word(1, WAITS, 61.0), 2: Word(1, "records the epoch", 61.0)},
     "no rank has made progress for 60 s: rank 2 (n2, process 102) records the epoch, and the others wait"),
    ({rank: Word(1, WAITS, 61.0) for rank in range(3)}, "no rank has made progress for 60 s: "
     + ", ".join(f"rank {rank} (n{rank}, process {100 + rank}) {WAITS}" for rank in range(3))),
    ({0: Word(1, "decides", 2.0), 1: Word(1, "waits", 61.0), 2: Word(1, "waits", 61.0)}, None),
])
def test_the_silent_are_named_then_the_busy_and_nobody_where_one_gets_on(words, verdict):
    assert verdict_of(words) == verdict


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    dataset = easy_graph()
    return write(dataset, random_owner(dataset, 3), 3, tmp_path_factory.mktemp("shards"))


def flags(epochs):
    return ["--model", "sage", "--hidden", 64, "--epochs", epochs, "--eval-every", 1, "--checkpoint-every", 10,
            "--timeout", TIMEOUT, "--out", "run"]


def wait_for_epochs(run, folder, num_epochs):
    metrics = folder / "run/metrics.jsonl"
    run.wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= num_epochs)


@pytest.mark.parametrize("stopped", [2, pytest.param(0, marks=pytest.mark.long)])
def test_a_stopped_rank_is_named_and_all_end(shards, tmp_path, stopped):
    with ParallelRun(3, served(["-m", "hpcgnn", "train", shards, *flags(100000)]), tmp_path) as run:
        wait_for_epochs(run, tmp_path, 12)
        ranks = run.ranks()
        os.kill(ranks[stopped], signal.SIGSTOP)
        ended = run.end()
        gone_by = time.monotonic() + ENDING_LIMIT
        while any(map(is_running, ranks.values())) and time.monotonic() < gone_by:
            time.sleep(0.01)
        assert not any(map(is_running, ranks.values()))
    assert ended.status != 0
    (sentence,) = ended.sentences
    assert sentence.startswith(f"hpcgnn: rank {stopped} (") and sentence.endswith(RESUMING)
    assert f"process {ranks[stopped]}) has given no sign of life for {TIMEOUT:.0f} s; rank " in sentence
    assert " waits for " in sentence and " in epoch " in sentence
    if stopped == 0:
        resumed = run_parallel_command(3, hpcgnn("train", shards, "--out", "run", "--resume", "--epochs", 1), tmp_path)
        assert resumed.status == 0, resumed.stderr
        assert not (tmp_path / "run/.standstill").exists()


PROGRAM = """
import time
from pathlib import Path
from hpcgnn.run.launch import run_parallel, watch, watch_closely
from hpcgnn.run.watchdog import HERE

def body(comm):
    watch(comm, 1.0)
    watch_closely(comm, 1.0, Path({folder!r}) if {shares} else None)
    Path({folder!r}, f"begun-{{comm.rank}}").touch()
    HERE.note("waits for rank 0")
    if comm.rank == 0:
        for _ in range({notes}):
            HERE.note("decides")
            time.sleep(0.1)
        time.sleep({pause})
    comm.Barrier()

run_parallel(body)
"""


def run_program(folder, **values):
    program = PROGRAM.format(folder=str(folder), **values)
    return run_parallel_command(3, [sys.executable, "-c", program], folder)


def test_ranks_that_wait_for_a_slow_one_that_gets_on_are_left_alone(tmp_path):
    ended = run_program(tmp_path, shares=True, notes=30, pause=0)
    assert (ended.status, ended.sentences) == (0, [])
    assert not (tmp_path / ".standstill").exists()


def test_a_job_that_was_suspended_as_a_whole_goes_on(tmp_path):
    program = PROGRAM.format(folder=str(tmp_path), shares=True, notes=10, pause=0)
    with ParallelRun(3, served(["-c", program]), tmp_path) as run:
        run.wait_for(lambda: len(list(tmp_path.glob("begun-*"))) == 3)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in run.ranks().values():
                os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(3.0)
        ended = run.end()
    assert (ended.status, ended.sentences) == (0, [])


def test_a_rank_that_lives_and_stands_still_is_named_with_what_it_does(tmp_path):
    ended = run_program(tmp_path, shares=True, notes=1, pause=100)
    assert ended.status != 0
    (sentence,) = ended.sentences
    assert sentence.startswith("hpcgnn: no rank has made progress for 1 s: rank 0 (")
    assert sentence.endswith(f") decides, and the others wait{RESUMING}")


def test_without_a_shared_folder_a_rank_says_what_it_waits_for(tmp_path):
    """Each rank speaks for itself, so more than one may before the launcher takes them down."""
    ended = run_program(tmp_path, shares=False, notes=1, pause=100)
    assert ended.status != 0
    assert ended.sentences
    for sentence in ended.sentences:
        rank = int(re.match(r"hpcgnn: rank (\d) \(", sentence)[1])
        assert ") has made no progress for " in sentence
        assert sentence.endswith(f" s: it {'waits for rank 0' if rank else 'decides'}{RESUMING}")
