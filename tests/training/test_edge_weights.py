"""Training over weighted arcs: ranks equal one process, widths are solved, and a model without weights is refused."""

from __future__ import annotations

import numpy as np
import pytest
from made_steps import share_clusters
from mpi4py import MPI
from reference_weights import draw_weights, weigh_part
from training_setup import SMALL, easy_graph, losses, train, train_as_one, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError
from hpcgnn.shards.reader import read_partition
from hpcgnn.training import session as session_module
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch

DATASET = easy_graph(spec="synthetic:nodes=120,mean_degree=6,classes=3,features=8")


@pytest.fixture
def weighted(monkeypatch):
    """Every part that a session reads has weights."""
    weight = draw_weights(DATASET)
    monkeypatch.setattr(session_module, "read_partition",
                        lambda *where: weigh_part(read_partition(*where), DATASET, weight))


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_ranks_train_as_one_process_does(weighted, shared_path, model):
    comm = MPI.COMM_WORLD
    _, metrics, _, expected = train_as_one(comm, DATASET, shared_path, model=model, epochs=4, lr=0.01, eval_every=4,
                                           dropout=0.5)
    np.testing.assert_allclose(losses(metrics), losses(expected), rtol=1e-4)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_steps_over_weighted_arcs_have_the_loss_of_the_whole_graph(weighted, shared_path, monkeypatch, model):
    comm = MPI.COMM_WORLD
    share_clusters(monkeypatch)
    shards = write_once(comm, DATASET, shared_path / "shards")
    session = Session.open(comm, shards, TrainConfig.of(**{**SMALL, "model": model, "lr": 0.0, "dropout": 0.0,
                                                           "steps": "4"}))
    learner = Learner.start(session, 0, None)
    whole, in_steps = (train_epoch(session, learner, 0, 0, num_steps=steps).loss for steps in (1, 4))
    assert in_steps == pytest.approx(whole, rel=1e-5)


@pytest.mark.parallel(2)
def test_weights_change_what_is_learned_and_what_adaqp_solves_from(shared_path, request):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, DATASET, shared_path / "shards")
    settings = {"epochs": 3, "method": "adaqp", "deterministic": True}
    _, plain, _ = train(comm, shards, shared_path / "plain", **settings)
    request.getfixturevalue("weighted")
    _, weighed, _ = train(comm, shards, shared_path / "weighed", **settings)
    assert all(abs(one["loss"] - other["loss"]) > 1e-4 for one, other in zip(plain, weighed, strict=True))


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings, message", [
    ({"model": "sage-max"}, "model sage-max takes no edge weights, and this graph has them; take another model"),
    ({"quantize": "uniform"}, "models of integers take no edge weights, and this graph has them")])
def test_models_that_take_no_weights_are_refused_on_all_ranks(weighted, shared_path, settings, message):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, DATASET, shared_path / "shards")
    with pytest.raises(CollectiveError, match=message):
        Session.open(comm, shards, TrainConfig.of(**{**SMALL, **settings}))
