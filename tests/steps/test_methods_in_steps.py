"""Methods in epochs of several steps: what each sends and reads there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_steps import share_clusters
from mpi4py import MPI
from training_setup import SMALL, easy_graph, losses, train, train_as_one, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.exchange.bits import EpochPlan, UniformBits
from hpcgnn.methods import METHODS
from hpcgnn.ops.counter import FORWARD
from hpcgnn.steps.clusters import Clusters
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import Moment, train_epoch, train_step

COMM = MPI.COMM_WORLD
STAND = {"norm": "none", "dropout": 0.0, "lr": 0.0, "layers": 3, "hidden": 6}    # weights stand, so rows do too


@pytest.fixture
def shards(shared_path, monkeypatch):
    share_clusters(monkeypatch)
    return write_once(COMM, easy_graph(seed=2), shared_path / "shards")


def opened(shards, **settings):
    session = Session.open(COMM, shards, TrainConfig.of(**{**SMALL, **settings}))
    return session, Learner.start(session, 0, None)


def deal_alike(monkeypatch):
    """Deal every epoch's clusters like the first epoch's."""
    steps = Clusters.steps
    monkeypatch.setattr(Clusters, "steps", lambda self, seed, epoch, num_steps: steps(self, seed, 0, num_steps))


def gradients_of_steps(session, learner, epoch, num_steps):
    for number, step in enumerate(session.steps.steps(learner.model, 0, epoch, num_steps)):
        train_step(session, learner, step.graph, session.objective.of_rows(step.rows, num_steps),
                   Moment(0, epoch, number, num_steps))
        yield torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()]).clone()


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_late_rows_and_gradients_of_weights_that_stand_are_the_fresh_ones(shards, monkeypatch, smoothing):
    deal_alike(monkeypatch)
    session, learner = opened(shards, steps="4", method="pipegcn", smoothing=smoothing, **STAND)
    found = []
    for epoch in range(3):
        session.exchange.begin_epoch(EpochPlan(UniformBits(32), is_asynchronous=epoch > 0, num_steps=4))
        found.append(list(gradients_of_steps(session, learner, epoch, 4)))
    for late in found[1:]:
        for one, fresh in zip(late, found[0], strict=True):
            torch.testing.assert_close(one, fresh, rtol=1e-4, atol=1e-6)
    session.forget()


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_late_step_reads_rows_as_they_were_before_it(shared_path, monkeypatch, is_late):
    """Far rows that another rank computes in the same step: fresh, or as they last were."""
    share_clusters(monkeypatch)
    every, dataset = np.ones(240, bool), easy_graph(seed=2)     # rows that no training node reads would not travel
    dataset = replace(dataset, train_mask=every, val_mask=~every, test_mask=~every)
    shards = write_once(COMM, dataset, shared_path / "shards")
    session, learner = opened(shards, steps="4", method="pipegcn", dropout=0.0, lr=0.05)
    steps, num_inner = session.steps, session.graph.num_inner
    node_id, num_nodes = session.graph.node_id, session.info.num_nodes

    def newest():
        """Rows of all nodes as their owners last computed them."""
        (table,) = steps._history._tables.values()
        rows = torch.zeros(len(node_id), 8)
        table.read(np.arange(len(node_id)), rows)
        every = np.zeros((num_nodes, 8), np.float32)
        every[node_id[:num_inner]] = rows[:num_inner].numpy()
        return COMM.allreduce(every), rows.numpy()

    for epoch in range(2):
        session.exchange.begin_epoch(EpochPlan(UniformBits(32), is_asynchronous=is_late and epoch > 0, num_steps=4))
        for number, step in enumerate(steps.steps(learner.model, 0, epoch, 4)):
            before, _ = newest()
            train_step(session, learner, step.graph, session.objective.of_rows(step.rows, 4),
                       Moment(0, epoch, number, 4))
            after, kept = newest()
            far = step.graph._batch.far
            expected = before if is_late and epoch > 0 else after
            np.testing.assert_array_equal(kept[far], expected[node_id[far]])
            fresh = node_id[step.graph._batch.fresh_halo]
            assert epoch == 0 or len(fresh) == 0 or (before[fresh] != after[fresh]).any()
    session.forget()


@pytest.mark.parallel([2, 3])
def test_ranges_of_all_steps_are_traced(shards):
    found = {}
    for num_steps in (2, 5):
        session, learner = opened(shards, steps=str(num_steps), method="adaqp", **STAND)
        session.exchange.begin_epoch(EpochPlan(UniformBits(8), is_traced=True, num_steps=num_steps))
        train_epoch(session, learner, 0, 0, num_steps=num_steps)
        found[num_steps] = session.exchange.traces()
        session.forget()
    assert found[2].keys() == found[5].keys()
    for place, trace in found[2].items():
        for peer, position in enumerate(trace.position):
            np.testing.assert_array_equal(position, found[5][place].position[peer])
            assert (np.diff(position) > 0).all()
            if place[1] == FORWARD:
                np.testing.assert_allclose(trace.row_range[peer], found[5][place].row_range[peer], rtol=0.05, atol=1e-3)
    assert COMM.allreduce(sum(map(len, trace.position))) > 0


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("send_share, num_epochs", [(1.0, 7), (0.4, 18)])
def test_differences_of_rows_that_stand_vanish(shards, send_share, num_epochs):
    """With widths of 2 bits, what receivers have comes nearer to the rows in every epoch."""
    session, learner = opened(shards, steps="4", method="uniform", bits=2, predict="previous", send_share=send_share,
                              **STAND)
    exact, _ = opened(shards, steps="4", **STAND)
    whole = train_epoch(exact, Learner.start(exact, 0, None), 0, 0, num_steps=4).loss
    errors = []
    for epoch in range(num_epochs):
        session.exchange.begin_epoch(EpochPlan(UniformBits(2), num_steps=4))
        errors.append(abs(train_epoch(session, learner, 0, epoch, num_steps=4).loss - whole))
    assert errors[-1] < 1e-4 < errors[0]
    session.forget()
    exact.forget()


@pytest.mark.parallel([2, 3])
def test_rows_that_stand_are_sent_once_per_staleness(shards):
    session, learner = opened(shards, steps="4", method="sancus", staleness=3, **STAND)
    exact, _ = opened(shards, steps="4", **STAND)
    whole = train_epoch(exact, Learner.start(exact, 0, None), 0, 0, num_steps=4)
    sent = []
    for epoch in range(6):
        session.exchange.begin_epoch(EpochPlan(UniformBits(32), num_steps=4))
        trace = train_epoch(session, learner, 0, epoch, num_steps=4)
        assert trace.loss == pytest.approx(whole.loss, rel=1e-5)
        sent.append(trace.sent_bytes_payload)
        assert trace.staleness <= 3
    assert sent[0] == whole.sent_bytes_payload > 0
    # Rows stand, so they travel again when they are too old; gradients also move with the rows of their step.
    assert sent[1] < 0.75 * sent[0] and sent[4] > 0.5 * sent[0]
    session.forget()
    exact.forget()


@pytest.mark.parallel([2, 3])
def test_a_sample_is_sent_and_all_other_rows_are_read_as_they_were(shards):
    whole, _ = opened(shards, steps="4", **STAND)
    full = train_epoch(whole, Learner.start(whole, 0, None), 0, 0, num_steps=4)
    session, learner = opened(shards, steps="4", method="bns", share=0.3, **STAND)
    traces = [train_epoch(session, learner, 0, epoch, num_steps=4) for epoch in range(4)]
    assert [trace.loss for trace in traces] == pytest.approx([full.loss] * 4, rel=1e-5)
    share = np.mean([trace.sent_bytes_payload for trace in traces]) / full.sent_bytes_payload
    assert share == pytest.approx(0.3, abs=0.08)
    session.forget()
    whole.forget()


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("predict", ["none", "previous", "auto"])
@pytest.mark.parametrize("steps", ["4", "rows:4", "auto"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_in_steps(shards, shared_path, monkeypatch, method, steps, predict):
    if predict != "none" and method in ("bns", "sancus"):
        predict = "none"
    monkeypatch.setattr("hpcgnn.steps.clusters.LABELED_ROWS_A_STEP", 30)
    monkeypatch.setattr("hpcgnn.steps.clusters.ROWS_A_STEP", 60)
    settings = {} if method not in ("sylvie", "joint") else {"asynchrony": "always"}
    _, metrics, _ = train(COMM, shards, shared_path / "run", method=method, steps=steps, predict=predict, epochs=6,
                          lr=0.05, dropout=0.2, model="sage", **settings)
    assert losses(metrics)[-1] < 0.6 * losses(metrics)[0]
    if COMM.size > 1 and method in ("pipegcn", "sylvie", "joint"):
        modes = [(record["num_steps"] > 1, record["mode"]) for record in metrics]
        # The first epoch of steps, or of one step, has nothing to read, and waits.
        expected = [(many, "async" if number and modes[number - 1][0] == many else "sync")
                    for number, (many, _) in enumerate(modes)]
        assert modes == expected


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("scheme", ["uniform", "degree-aware", "layer-aware", "degree-steps"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_quantized_training_in_steps_has_the_losses_of_one_rank(shared_path, monkeypatch, model, scheme):
    share_clusters(monkeypatch)
    settings = {"model": model, "quantize": scheme, "steps": "3", "epochs": 4, "dropout": 0.3, "lr": 0.03}
    _, metrics, _, expected = train_as_one(COMM, easy_graph(seed=2), shared_path, **settings)
    np.testing.assert_allclose(losses(metrics), losses(expected), rtol=1e-5)
    assert losses(metrics)[-1] < 0.95 * losses(metrics)[0]
