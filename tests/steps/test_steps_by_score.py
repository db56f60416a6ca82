"""Auto has fewer steps where validation scores stand, whichever way the score is better."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from made_steps import share_clusters
from mpi4py import MPI
from training_setup import easy_graph, train, write_once

from hpcgnn.training import trainer
from hpcgnn.training.evaluate import Evaluation
from hpcgnn.training.scores import SCORES

COMM = MPI.COMM_WORLD
SETTINGS = {"model": "gcn", "steps": "auto", "epochs": 20, "lr": 0.003}


def scored(monkeypatch, shared_path, scores, validates=True, **settings):
    """Collective: steps by epoch, of a training whose evaluations have these validation scores, the last one on."""
    share_clusters(monkeypatch)
    monkeypatch.setattr("hpcgnn.steps.clusters.ROWS_A_STEP", 60)      # auto begins with 4 steps
    monkeypatch.setattr("hpcgnn.methods.step_count.LEAST_FALL", -1.0)      # the loss has no say
    told = itertools.chain(scores, itertools.repeat(scores[-1]))
    monkeypatch.setattr(trainer, "evaluate", lambda *_: Evaluation(0.5, next(told), 0.5, 1.0))
    dataset = easy_graph()
    dataset = dataset if validates else replace(dataset, val_mask=np.zeros_like(dataset.val_mask))
    shards = write_once(COMM, dataset, shared_path / "shards")
    _, metrics, _ = train(COMM, shards, shared_path / "run", **SETTINGS | settings)
    return [record["num_steps"] for record in metrics]


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("eval_every", [1, 2])
def test_ten_evaluations_without_a_better_score_end_many_steps(shared_path, monkeypatch, eval_every):
    found = scored(monkeypatch, shared_path, [0.5, 0.6], eval_every=eval_every, epochs=30)
    assert found == [4] * (12 * eval_every) + [1] * (30 - 12 * eval_every)


@pytest.mark.parallel([1])
def test_scores_that_rise_leave_the_steps_alone(shared_path, monkeypatch):
    assert scored(monkeypatch, shared_path, [0.01 * k for k in range(20)], eval_every=1) == [4] * 18 + [1] * 2


@pytest.mark.parallel([1])
@pytest.mark.parametrize("sign, num_many", [(1, 11), (-1, 18)])
def test_a_score_of_which_low_is_better_rises_for_the_worse(shared_path, monkeypatch, sign, num_many):
    monkeypatch.setitem(SCORES, "accuracy", replace(SCORES["accuracy"], prefers_low=True))
    found = scored(monkeypatch, shared_path, [0.5 + sign * 0.01 * k for k in range(20)], eval_every=1)
    assert found == [4] * num_many + [1] * (20 - num_many)


@pytest.mark.parallel([1])
def test_without_a_node_that_validates_the_steps_stay(shared_path, monkeypatch):
    assert scored(monkeypatch, shared_path, [float("nan")], False, eval_every=1) == [4] * 18 + [1] * 2


@pytest.mark.parallel([1, 2])
def test_clusters_that_hold_few_arcs_have_one_epoch(shared_path, shards, monkeypatch):
    share_clusters(monkeypatch, inside=0.1)      # 4 steps of these hold 1.3 times the arcs that chance would have there
    monkeypatch.setattr("hpcgnn.steps.clusters.ROWS_A_STEP", 60)
    _, metrics, _ = train(COMM, shards, shared_path / "run", **SETTINGS | {"epochs": 5})
    assert [record["num_steps"] for record in metrics] == [4] + [1] * 4
