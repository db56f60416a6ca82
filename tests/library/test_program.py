"""A program of the user's own, started with and without a launcher, ends as a batch system needs it to."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fork_server import served
from parallel_run import clean_environment, run_parallel_command
from training_setup import easy_graph, random_owner, write

TRAIN = """
import signal, sys
import hpcgnn

class Stop(hpcgnn.Callback):
    def on_epoch_end(self, run, record):
        if record["epoch"] == 2:
            {deed}

graph = hpcgnn.open(sys.argv[1])
run = hpcgnn.fit("gcn", graph, layers=2, hidden=4, epochs=4, out=sys.argv[2], callbacks=[Stop()])
print("trained", graph.comm.rank)
"""
DEEDS = {"stopped": "signal.raise_signal(signal.SIGTERM)",
         "failed": "if run.comm.rank == run.comm.size - 1: raise ValueError('of the user')"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("programs")
    for parts in (1, 2):
        dataset = easy_graph()
        write(dataset, random_owner(dataset, parts), parts, made / f"p{parts}")
    for name, deed in {**DEEDS, "trained": "pass"}.items():
        (made / f"{name}.py").write_text(TRAIN.format(deed=deed))
    (made / "left.py").write_text(f"{TRAIN.format(deed='pass')}if graph.comm.rank == 0:\n    run.predict()\n")
    return made


def test_a_program_needs_no_launcher(folder):
    ended = subprocess.run(served([folder / "trained.py", "p1", "alone"]), cwd=folder, timeout=120,
                           capture_output=True, text=True, env=clean_environment())
    assert ended.returncode == 0 and ended.stdout == "trained 0\n"


@pytest.mark.parametrize("deed, status, words", [
    ("stopped", 75, "hpcgnn.errors.Interrupted: stopped by a signal after epoch 3"),
    ("failed", 1, "ValueError: of the user")])
def test_an_exception_that_is_not_caught_ends_all_ranks_with_its_status(folder, deed, status, words):
    ended = run_parallel_command(2, [sys.executable, f"{deed}.py", "p2", deed], folder)
    assert ended.status == status
    assert ended.stderr.count(words) == 1
    assert "trained" not in ended.stdout


def test_a_rank_that_predicts_alone_does_not_wait_for_ever(folder):
    ended = run_parallel_command(2, [sys.executable, "left.py", "p2", "left"], folder)
    assert ended.status == 1
    assert "has ended without coming to run.predict, where rank 0 waits; all ranks must make this call" in ended.stderr
