"""A peer in several processes of this machine: they train as one does, wait for each other, and end together."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcgnn.bench.environment import thread_environment
from hpcgnn.errors import TrainingError

sys.path.insert(0, str(Path(__file__).parents[3] / "jobs"))

import stand_in_peer
from measurements.race import score_loop
from measurements.race.contestants import Peer, PeerSettings, RaceSettings
from measurements.race.curve import Settings
from measurements.race.runs import run_beside, train_peer
from measurements.race.score_loop import PeerGraph
from measurements.race.together import join

NUM_NODES, NUM_WEIGHTS = 400, 4 * 16 + 16 + 2 * 16 + 16 * 2 + 2
RACE = RaceSettings("sage", 6, 60.0, layers=2, hidden=16)


class StandIn(Peer):
    """A peer that needs no package."""

    driver = "stand_in_peer"


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """An archive of which every second training node is of class 0 and every other of class 1: two processes that did
    not average their gradients would know one class each.
    """
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(stand_in_peer.__file__).parent),
                                                      os.environ.get("PYTHONPATH", "")]))
    labels = np.arange(NUM_NODES) % 2
    features = np.random.default_rng(0).normal(labels[:, None] * 0.8, 1.0, (NUM_NODES, 4)).astype(np.float32)
    place = np.arange(NUM_NODES)
    path = tmp_path / "graph.npz"
    np.savez(path, indptr=np.zeros(NUM_NODES + 1, np.int64), indices=np.zeros(0, np.int32), features=features,
             labels=labels, num_classes=2, train_mask=place < 100, val_mask=place >= 100, test_mask=place >= 300)
    return path


@pytest.mark.long      # test_together has what processes exchange
def test_processes_train_as_one_does_with_their_batches_together(arrays, tmp_path):
    one, two = (train_peer(StandIn("dgl", "uniform"), RACE, Settings(0.02, 0.0, 0.0, 100, processes), 0, 2, arrays,
                           tmp_path) for processes in (1, 2))
    assert [(point.epoch, point.updates) for point in two.points] == [(epoch, 2 * epoch) for epoch in range(1, 7)]
    assert [point.val_score for point in two.points] == pytest.approx([point.val_score for point in one.points],
                                                                      abs=0.02)
    assert one.best.val_score > 0.6
    assert [point.sent_bytes for point in one.points] == [0] * 6
    assert [point.sent_bytes for point in two.points] == [2 * 2 * epoch * 4 * NUM_WEIGHTS for epoch in range(1, 7)]
    assert two.peak_bytes > 1e6


@pytest.mark.long
def test_where_a_peers_process_fails_its_sentence_is_told(arrays, tmp_path):
    with pytest.raises(TrainingError, match=r"stand_in_peer … failed with status 1: .*the last process has failed"):
        train_peer(StandIn("dgl", "uniform"), RACE, Settings(stand_in_peer.FAILING_RATE, batch=100, processes=3), 0, 2,
                   arrays, tmp_path)


def test_where_one_process_fails_its_sentence_is_told_and_the_others_are_ended(tmp_path):
    sleeping = [sys.executable, "-c", "import time; time.sleep(1000)"]
    failing = [sys.executable, "-c", "import sys; sys.exit('no such graph')"]
    started = time.monotonic()
    with pytest.raises(TrainingError, match="failed with status 1: no such graph"):
        run_beside([sleeping, failing], thread_environment(1), tmp_path)
    assert time.monotonic() - started < 60


def test_what_the_first_process_printed_is_returned_when_all_have_ended(tmp_path):
    commands = [[sys.executable, "-c", f"import time; time.sleep({0.5 * rank}); print('rank', {rank})"]
                for rank in range(2)]
    assert run_beside(commands, thread_environment(1), tmp_path) == "rank 0\n"
    assert (tmp_path / "said-1.txt").read_text() == "rank 1\n"


LATE, SLOW_BATCH, EVALUATION, NOISE = 3.0, 0.3, 3.0, 2.0      # seconds


class SlowToEvaluate(torch.nn.Module):
    """A model whose evaluations take long, and whose batches do not."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, graph, rows):
        if not self.training:
            time.sleep(EVALUATION)
        return rows * self.scale


def train_beside(rank: int, store: Path, answers) -> None:
    """Train two epochs in one of two processes, of which the second begins late and is slow."""
    settings = PeerSettings("sage", 2, 60.0, processes=2, rank=rank, store=str(store))
    processes = join(settings)
    mask = torch.tensor([True, True])
    arrays = PeerGraph(None, None, torch.eye(2), torch.tensor([0, 1]), {"train": mask, "val": mask, "test": mask}, 2)

    def losses(model):
        time.sleep(SLOW_BATCH * rank)
        yield torch.nn.functional.cross_entropy(model(None, arrays.rows), arrays.labels)

    time.sleep(LATE * rank)
    points, peak = score_loop.train(SlowToEvaluate(), None, arrays, losses, settings, processes)
    answers.put((points, peak, processes.seed(5)))
    processes.leave()


@pytest.mark.long
def test_the_clock_counts_the_slowest_process_but_neither_its_start_nor_evaluations(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=train_beside, args=(rank, tmp_path / "store", answers)) for rank in range(2)]
    for process in processes:
        process.start()
    (points, peak, seed), (others, other_peak, other_seed) = (answers.get(timeout=100) for _ in processes)
    for process in processes:
        process.join()
    assert points == others and peak == other_peak > 0 and {seed, other_seed} == {10, 11}
    assert 2 * SLOW_BATCH <= points[-1].seconds < 2 * SLOW_BATCH + NOISE
    assert points[0].val_score == 1.0
