"""A rank that makes no progress ends the job and is named; a slow one, and a job that was suspended, are left alone."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest
from fork_server import served
from parallel_run import ParallelRun, run_parallel_command
from training_setup import easy_graph, random_owner, write

from hpcgnn.exchange.transfer import waiting
from hpcgnn.run.watchdog import Colleague, Watchdog, Whereabouts, Word

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


# Less than the program's own least time to answer, and more than a busy machine keeps a thread from running.
TIMEOUT, ANSWER = 1.0, 1.0
PROGRAM = f"""
import sys, time
from pathlib import Path
from hpcgnn.run import watchdog
from hpcgnn.run.launch import run_parallel, watch, watch_closely

watchdog.LEAST_SECONDS_TO_ANSWER = {ANSWER}
HERE = watchdog.HERE

def body(comm):
    watch(comm, {TIMEOUT})
    watch_closely(comm, {TIMEOUT}, Path() if "shared" in sys.argv else None)
    Path(f"begun-{{comm.rank}}").touch()
    HERE.note("waits for rank 0")
    if comm.rank == 0:
        while "moves" in sys.argv and not Path("stand still").exists():
            HERE.note("decides")
            time.sleep(0.1)
        HERE.note("decides")
        Path("stands").touch()
        time.sleep(100)
    comm.Barrier()

run_parallel(body)
"""


def test_one_that_gets_on_and_a_suspended_job_are_left_alone_and_one_that_stands_still_is_named(tmp_path):
    with ParallelRun(3, served(["-c", PROGRAM, "shared", "moves"]), tmp_path) as run:
        run.wait_for(lambda: len(list(tmp_path.glob("begun-*"))) == 3)
        time.sleep(1.2 * (TIMEOUT + ANSWER))        # in which ranks 1 and 2 ask
        assert run.process.poll() is None and (tmp_path / ".standstill").exists()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in run.ranks().values():
                os.kill(pid, number)
            time.sleep(1.5 * TIMEOUT if number == signal.SIGSTOP else 0.2)
        (tmp_path / "stand still").touch()
        ended = run.end()
    assert ended.status != 0 and (tmp_path / "stands").exists()
    (sentence,) = ended.sentences
    assert sentence.startswith("hpcgnn: no rank has made progress for 1 s: rank 0 (")
    assert sentence.endswith(f") decides, and the others wait{RESUMING}")


def test_without_a_shared_folder_a_rank_says_what_it_waits_for(tmp_path):
    """Each rank speaks for itself, so more than one may before the launcher takes them down."""
    ended = run_parallel_command(2, [sys.executable, "-c", PROGRAM], tmp_path)
    assert ended.status != 0
    assert ended.sentences
    for sentence in ended.sentences:
        rank = int(re.match(r"hpcgnn: rank (\d) \(", sentence)[1])
        assert ") has made no progress for " in sentence
        assert sentence.endswith(f" s: it {'waits for rank 0' if rank else 'decides'}{RESUMING}")


TRAINING = f"""
import sys
from hpcgnn.__main__ import main
from hpcgnn.run import watchdog

watchdog.LEAST_SECONDS_TO_ANSWER = {ANSWER}
main(["train", "shards", *sys.argv[1:], "--hidden", "8", "--timeout", "{TIMEOUT}", "--out", "run"])
"""


@pytest.mark.parametrize("stopped", [2, pytest.param(0, marks=pytest.mark.long)])
def test_a_stopped_rank_of_a_training_is_named_and_all_end(tmp_path, stopped):
    dataset = easy_graph()
    write(dataset, random_owner(dataset, 3), 3, tmp_path / "shards")
    metrics = tmp_path / "run/metrics.jsonl"
    with ParallelRun(3, served(["-c", TRAINING, "--epochs", 100000, "--checkpoint-every", 2]), tmp_path) as run:
        run.wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 4)
        ranks = run.ranks()
        os.kill(ranks[stopped], signal.SIGSTOP)
        ended = run.end()
        assert not run.left(ranks)
    assert ended.status != 0
    (sentence,) = ended.sentences
    assert sentence.startswith(f"hpcgnn: rank {stopped} (") and sentence.endswith(RESUMING)
    assert f"process {ranks[stopped]}) has given no sign of life for {TIMEOUT:.0f} s; rank " in sentence
    assert " waits for " in sentence and " in epoch " in sentence
    if stopped == 0:
        resumed = run_parallel_command(3, served(["-c", TRAINING, "--resume", "--epochs", 1]), tmp_path)
        assert resumed.status == 0, resumed.stderr
        assert not (tmp_path / "run/.standstill").exists()
