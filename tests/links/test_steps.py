"""Links are learned in many steps: what a step learns, and that any number of ranks learns the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from covering import long_but
from known_links import LINK_SETTINGS, classes_by, expected_loss, with_links
from made_steps import NODES_A_CLUSTER, share_clusters
from mpi4py import MPI
from training_setup import (
    RELATIONS,
    SMALL,
    assert_same_bits,
    losses,
    on_rank_zero,
    train,
    train_as_one,
    typed_graph,
    write_once,
)

from hpcgnn.config import TrainConfig
from hpcgnn.steps.clusters import deal
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.learner import Learner
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import Moment, train_step

COMM = MPI.COMM_WORLD
IN_STEPS = {**SMALL, **LINK_SETTINGS, "lr": 0.0, "epochs": 2}


class Rows(torch.nn.Module):
    """A table of rows without layers, so that a step's gradient is the gradient of the loss alone."""

    def __init__(self, num_nodes):
        super().__init__()
        start = np.random.default_rng(1).standard_normal((num_nodes, 5)).astype(np.float32) / 2
        self.rows = torch.nn.Parameter(torch.from_numpy(start))

    def forward(self, graph, x):
        return self.rows[graph.node_index]


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("is_directed", [False, True], ids=["both ways", "directed"])
@pytest.mark.parametrize("kind", ["softmax", "bce", "bpr"])
@pytest.mark.parametrize("candidates", ["all", "label", "type"])
@pytest.mark.parametrize("steps", ["3", "rows:3"])
def test_a_step_learns_the_questions_about_its_nodes(shared_path, monkeypatch, is_directed, kind, candidates, steps):
    """Answers and drawn nodes are constants. The steps of an epoch ask each question once, and each draws anew."""
    share_clusters(monkeypatch)
    dataset = with_links(is_directed=is_directed, has_types=candidates == "type", mean_degree=3)
    config = TrainConfig.of(**{**IN_STEPS, "link_loss": kind, "candidates": candidates, "steps": steps})
    session = Session.open(COMM, write_once(COMM, dataset, shared_path / "shards"), config,
                           recipe=Recipe(Rows(dataset.num_nodes)))
    learner = Learner.start(session, 0, None)
    node, by_row = np.arange(dataset.num_nodes), steps.startswith("rows")
    step_of = deal(node, 0, 1, 3) if by_row else session.steps.clusters.steps(0, 1, 3)[node // NODES_A_CLUSTER]
    classes = classes_by(dataset, candidates)
    rows = learner.model.rows.detach().clone()

    def of_all(number):
        whole = rows.clone().requires_grad_()
        expected = expected_loss(dataset, whole, kind, classes, (True, is_directed), 0, 1, step_of == number, rows,
                                 number)
        expected = expected * 3 / (dataset.num_edges * (1 + is_directed))
        expected.backward()
        return expected.item(), whole.grad

    for number, step in enumerate(session.steps.steps(learner.model, 0, 1, 3, by_row=by_row)):
        loss, _ = train_step(session, learner, step.graph, session.objective.of_rows(step.rows, 3, number),
                             Moment(0, 1, number, 3))
        expected, gradient = on_rank_zero(COMM, lambda number=number: of_all(number))
        assert COMM.allreduce(loss.item()) == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(learner.model.rows.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("settings", long_but((1, 2, 4, 5, 6), [
    {"model": "gcn", "steps": "4"}, {"model": "sage", "steps": "4", "history": "8", "candidates": "label"},
    {"model": "gat", "steps": "rows:4", "link_share": 0.5}, {"model": "sage", "steps": "4", "graph": "directed"},
    {"model": "rgcn", "steps": "4", "graph": "reverses", "n3": 0.01, "decoder": "complex"},
    {"model": "rgcn", "steps": "rows:3", "graph": "relations", "n3": 0.01, "link_share": 0.5, "edge_dropout": 0.3},
    {"model": "rgcn", "steps": "4", "graph": "relations", "asked_relation": RELATIONS[1], "epochs": 4}]),
    ids=["gcn", "coded history", "share", "directed", "reverses", "relations", "one relation"])
def test_ranks_train_as_one(shared_path, monkeypatch, settings):
    share_clusters(monkeypatch)
    settings = {"layers": 2, "dropout": 0.3, "epochs": 2, "lr": 0.01, **LINK_SETTINGS, **settings}
    kind = settings.pop("graph", "")
    dataset = typed_graph(kind == "reverses") if kind in ("reverses", "relations") else \
        with_links(is_directed=kind == "directed")
    found, metrics, expected, of_one = train_as_one(COMM, dataset, shared_path, **settings)
    np.testing.assert_allclose(losses(metrics), losses(of_one), rtol=1e-3 if "history" in settings else 1e-5)
    assert found["test_score"] == pytest.approx(expected["test_score"], abs=0.01)
    # A share of the questions is another each epoch, and so is its loss.
    assert "link_share" in settings or losses(metrics)[-1] < losses(metrics)[0]


@pytest.mark.parallel(2)
def test_messages_that_come_late_and_a_resume_between_epochs(shared_path, monkeypatch):
    share_clusters(monkeypatch)
    shards = write_once(COMM, with_links(), shared_path / "shards")
    settings = {**LINK_SETTINGS, "method": "sylvie", "steps": "3", "lr": 0.06, "hidden": 16, "epochs": 6,
                "checkpoint_every": 3}
    found, metrics, whole = train(COMM, shards, shared_path / "whole", **settings)
    assert losses(metrics)[-1] < losses(metrics)[0] - 0.2
    assert found["test_score"] > 0.05      # 240 nodes in any order have 0.025
    train(COMM, shards, shared_path / "run", **{**settings, "epochs": 3})
    resumed = read_checkpoint(shared_path / "run" / "checkpoint.h5")
    _, _, run = train(COMM, shards, shared_path / "run", resumed=resumed, **settings)
    if COMM.rank == 0:
        assert_same_bits(run.folder.checkpoint, whole.folder.checkpoint)
