"""Epochs of several steps: what each computes, and that it is the same on any number of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import long_but
from made_steps import NODES_A_CLUSTER, dense_gradients, share_clusters
from mpi4py import MPI
from training_setup import SMALL, easy_graph, losses, train, train_as_one, write, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.graph.batch import order_rows
from hpcgnn.graph.rows import Prefixes
from hpcgnn.nn.names import MODEL_PATHS, RELATIONAL
from hpcgnn.steps.clusters import deal, rests_in
from hpcgnn.training.evaluate import evaluate
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import Moment, train_epoch, train_step

COMM = MPI.COMM_WORLD


def opened(shards, **settings):
    session = Session.open(COMM, shards, TrainConfig.of(**{**SMALL, "norm": "none", "dropout": 0.0, **settings}))
    return session, Learner.start(session, 0, None)


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("num_steps, by_row, steps", [(1, False, "8"), (3, False, "8"), (8, False, "8"), (4, True, "8"),
                                                      (4, True, "auto"), (3, False, "auto")])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_a_step_has_the_gradients_of_its_rows_and_takes_all_others_for_constants(shared_path, monkeypatch, model,
                                                                                   num_steps, by_row, steps):
    """With weights that stand, history is exact, so a dense float64 pass says what every step must give. Where `auto`
    deals rows one by one, all neighbors are constants, and zeros until a step has computed them.
    """
    share_clusters(monkeypatch)
    dataset = easy_graph(seed=2)
    shards = write_once(COMM, dataset, shared_path / "shards")
    session, learner = opened(shards, model=model, layers=3, hidden=6, lr=0.0, steps=steps)
    weights, kept = dict(learner.model.state_dict()), {} if by_row and steps == "auto" else None
    for epoch in range(2):
        step_of = session.steps.clusters.steps(0, epoch, num_steps)[np.arange(dataset.num_nodes) // NODES_A_CLUSTER]
        if by_row:
            step_of = deal(np.arange(dataset.num_nodes), 0, epoch, num_steps)
        if kept is not None:
            step_of[~dataset.train_mask & rests_in(np.arange(dataset.num_nodes), 0, epoch)] = -1
        for number, step in enumerate(session.steps.steps(learner.model, 0, epoch, num_steps, by_row=by_row)):
            loss, _ = train_step(session, learner, step.graph, session.objective.of_rows(step.rows),
                                 Moment(0, epoch, number, num_steps))
            expected_loss, expected = dense_gradients(dataset, model, weights, step_of == number, num_steps, 3, kept)
            assert COMM.allreduce(loss.item()) == pytest.approx(expected_loss, rel=1e-5)
            for name, parameter in learner.model.named_parameters():
                found, wanted = parameter.grad.double(), expected[name]
                assert (found - wanted).abs().max() < 2e-5 * max(1e-2, wanted.abs().max()), name


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("settings, rests", [
    ({"steps": "auto"}, True), ({"steps": "auto", "method": "uniform", "bits": 4}, True), ({"steps": "rows:4"}, False),
    ({"steps": "auto", "method": "adaqp"}, False), ({"steps": "auto", "epoch_rows": "all"}, False),
    ({"steps": "auto", "norm": "batch"}, False)])
def test_auto_computes_rows_without_a_label_in_every_second_epoch(shared_path, monkeypatch, settings, rests):
    share_clusters(monkeypatch)
    dataset = easy_graph(seed=2)
    session, learner = opened(write_once(COMM, dataset, shared_path / "shards"), model="sage", layers=3, hidden=6,
                              **settings)
    labeled, computed = set(np.flatnonzero(dataset.train_mask)), []
    for epoch in range(3):
        nodes = []
        for number, step in enumerate(session.steps.steps(learner.model, 0, epoch, 4, by_row=True)):
            train_step(session, learner, step.graph, session.objective.of_rows(step.rows), Moment(0, epoch, number, 4))
            nodes.extend(session.graph.node_id[step.rows].tolist())
        nodes = [node for of_rank in COMM.allgather(nodes) for node in of_rank]
        assert len(nodes) == len(set(nodes))
        computed.append(set(nodes))
    assert computed[0] | computed[1] == set(range(dataset.num_nodes))
    if rests:
        assert computed[0] & computed[1] == labeled and computed[2] == computed[0]
        shares = [len(nodes - labeled) / (dataset.num_nodes - len(labeled)) for nodes in computed]
        assert min(shares) > 0.3
    else:
        assert computed[0] == computed[1] == computed[2]


def with_chains(dataset):
    """The nodes, seven by seven: 0 reads 1, 1 reads 2, .. 3 reads 4, and 6 reads 5; 0 and 6 have labels to train on."""
    place = np.arange(dataset.num_nodes) % 7
    reads = np.isin(place, [0, 1, 2, 3, 6]) & (np.arange(dataset.num_nodes) < dataset.num_nodes // 7 * 7)
    source = np.flatnonzero(reads) + np.where(place[reads] == 6, -1, 1)
    return replace(dataset, indptr=np.append(0, np.cumsum(reads)), indices=source.astype(dataset.indices.dtype),
                   train_mask=reads & np.isin(place, [0, 6]), val_mask=place == 2, test_mask=place == 3)


@pytest.mark.covering
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("by_row, has_far_rows", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("model", [name if name in ("gat", "gcn", "gcnii", "jknet", "sage", "sage-max") else
                                   pytest.param(name, marks=pytest.mark.long)
                                   for name in sorted(MODEL_PATHS.keys() - set(RELATIONAL))])
def test_rows_that_no_gradient_reaches_change_none(shared_path, monkeypatch, model, by_row, has_far_rows):
    """The backward pass leaves them out; here it must give what a pass over all rows gives. Where chains of four arcs
    lead to a label, a layer also computes rows that are too far from it, since rows beside them in the batch read them.
    """
    share_clusters(monkeypatch)
    dataset, num_steps = easy_graph(seed=3), 6
    if has_far_rows:
        num_steps, dataset = 2, with_chains(dataset)
    shards = write_once(COMM, dataset, shared_path / "shards")
    settings = {"model": model, "layers": 3, "hidden": 8, "norm": "layer", "dropout": 0.5, "lr": 0.0,
                "steps": str(num_steps)}

    def gradients():
        session, learner = opened(shards, **settings)
        for number, step in enumerate(session.steps.steps(learner.model, 0, 0, num_steps, by_row=by_row)):
            train_step(session, learner, step.graph, session.objective.of_rows(step.rows),
                       Moment(0, 0, number, num_steps))
            yield {name: parameter.grad.clone() for name, parameter in learner.model.named_parameters()}

    short = list(gradients())

    def ordered(*arguments):
        order, prefixes = order_rows(*arguments)
        return order, Prefixes(prefixes.num_within)

    monkeypatch.setattr("hpcgnn.graph.batch.order_rows", ordered)
    for found, expected in zip(short, gradients(), strict=True):
        for name, wanted in expected.items():
            torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model", sorted(MODEL_PATHS.keys() - set(RELATIONAL)))
def test_steps_of_weights_that_stand_have_the_loss_of_the_whole_graph(shared_path, monkeypatch, model):
    share_clusters(monkeypatch)
    shards = write_once(COMM, easy_graph(seed=1), shared_path / "shards")
    session, learner = opened(shards, model=model, layers=3, lr=0.0, steps="6")
    whole = train_epoch(session, learner, 0, 0)
    in_steps = [train_epoch(session, learner, 0, epoch, num_steps=6).loss for epoch in range(2)]
    assert in_steps == pytest.approx([whole.loss] * 2, rel=1e-5)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("model, steps, own", long_but((0, 1, 2, 3), [
    ("sage-max", "4", {"edge_dropout": 0.4}), ("gcnii", "rows:4", {"edge_dropout": 0.4}),
    ("gat", "8", {"history": "4"}), ("sage", "rows:8", {}), ("gat", "4", {"edge_dropout": 0.4}),
    ("gcnii", "8", {"history": "bf16"}), ("sage", "8", {"history": "8"})]), ids=str)
def test_ranks_that_share_clusters_have_the_losses_of_one(shared_path, monkeypatch, model, steps, own):
    """float32 sums differ in their order, and fewer bits may round them apart."""
    share_clusters(monkeypatch)
    _, metrics, _, expected = train_as_one(COMM, easy_graph(seed=4), shared_path, model=model, layers=3, hidden=8,
                                           dropout=0.5, epochs=4, steps=steps, lr=0.008, **own)
    np.testing.assert_allclose(losses(metrics), losses(expected), rtol=1e-3 if "history" in own else 1e-5)
    assert losses(metrics)[-1] < (1 if "edge_dropout" in own else 0.95) * losses(metrics)[0]


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_steps_of_weights_that_stand_have_the_loss_and_gradient_of_the_thinned_graph(shared_path, monkeypatch, model):
    """One layer, which reads no history. Each epoch has other edges."""
    share_clusters(monkeypatch)
    shards = write_once(COMM, easy_graph(seed=1), shared_path / "shards")
    session, learner = opened(shards, model=model, layers=1, lr=0.0, steps="6", edge_dropout=0.4)
    found = []
    for epoch in range(2):
        objective, total, total_loss = session.objective, 0.0, 0.0
        for number, step in enumerate(session.steps.steps(learner.model, 0, epoch, 6,
                                                          graph=session.graph_of(0, epoch))):
            loss, _ = train_step(session, learner, step.graph, objective.of_rows(step.rows, 6),
                                 Moment(0, epoch, number, 6))
            total, total_loss = total + gradient_of(learner) / 6, total_loss + loss.item() / 6
        loss, _ = train_step(session, learner, session.graph_of(0, epoch), objective, Moment(0, epoch))
        loss = COMM.allreduce(loss.item())
        assert COMM.allreduce(total_loss) == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(total, gradient_of(learner), rtol=1e-4, atol=1e-6)
        found.append(loss)
    assert abs(found[0] - found[1]) > 1e-4


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", [{}, {"precision": "bf16", "input_dropout": 0.0}, {"edge_dropout": 0.4}], ids=str)
def test_heads_that_sum_rows_before_they_map_them_have_the_gradients_of_those_that_map_first(shared_path, monkeypatch,
                                                                                             settings):
    share_clusters(monkeypatch)
    shards = write_once(COMM, easy_graph(seed=1), shared_path / "shards")
    found = []
    for is_shared in (True, False):
        monkeypatch.setattr("hpcgnn.nn.attention.shares_rows", lambda *_, is_shared=is_shared: is_shared)
        session, learner = opened(shards, model="gat", layers=3, lr=0.0, steps="6", dropout=0.5, **settings)
        gradients = []
        for epoch in range(2):
            for number, step in enumerate(session.steps.steps(learner.model, 0, epoch, 6,
                                                              graph=session.graph_of(0, epoch))):
                train_step(session, learner, step.graph, session.objective.of_rows(step.rows, 6),
                           Moment(0, epoch, number, 6))
                gradients.append(gradient_of(learner))
        found.append(torch.stack(gradients))
    off = (found[0] - found[1]).norm(dim=1) / found[1].norm(dim=1)
    assert off.max() < (2e-2 if "precision" in settings else 1e-5) and (found[1].norm(dim=1) > 0).all()


def gradient_of(learner):
    return torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()])


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("bits", [1, 8, 32])
def test_bytes_do_not_grow_with_the_number_of_steps(shared_path, monkeypatch, bits):
    """A row crosses once an epoch, in whichever step computes it. One step sends the narrower side of the last layer,
    several send its input; here both have 4 columns.
    """
    share_clusters(monkeypatch)
    shards = write_once(COMM, easy_graph(seed=5), shared_path / "shards")
    sent = []
    for steps in ("1", "2", "6"):
        session, learner = opened(shards, layers=3, hidden=4, method="uniform", bits=bits, steps=steps)
        trace = train_epoch(session, learner, 0, 0, num_steps=int(steps))
        sent.append((trace.sent_bytes_payload, trace.sent_bytes_parameters))
    assert len(set(sent)) == 1 and sent[0][0] > 0


@pytest.mark.parallel([1, 2])
def test_training_in_steps_learns_and_scores_on_the_whole_graph(shared_path, monkeypatch):
    share_clusters(monkeypatch)
    shards = write_once(COMM, easy_graph(seed=6), shared_path / "shards")
    found = {steps: train(COMM, shards, shared_path / f"run-{steps}", steps=steps, epochs=5, lr=0.05)
             for steps in ("1", "4")}
    summary, _, run = found["4"]
    assert summary["val_score"] > found["1"][0]["val_score"] and summary["val_score"] > 0.8
    session = run.session
    again = evaluate(COMM, run.learner.with_best_weights(), session.graph, session.objective, session.score)
    assert again.val_score == summary["val_score"]


@pytest.mark.parallel([2, 3])
def test_gradients_may_be_summed_in_few_bits(shared_path, monkeypatch):
    share_clusters(monkeypatch)
    shards = write_once(COMM, easy_graph(seed=7), shared_path / "shards")
    found = {bits: train(COMM, shards, shared_path / f"run-{bits}", steps="4", epochs=4, hidden=64, sum_bits=bits)[1]
             for bits in (32, 8)}
    exact, few = (losses(metrics) for metrics in found.values())
    np.testing.assert_allclose(few, exact, rtol=0.1)
    assert not np.array_equal(few, exact) and few[-1] < 0.5 * few[0]
    sums = [metrics[-1]["sent_bytes_sums"] for metrics in found.values()]
    assert sums[1] < 0.6 * sums[0]


@pytest.mark.parametrize("dtype, model, edge_dropout", [
    ("fp32", "gcn", 0.0), ("bf16", "gcn", 0.0), ("fp32", "gcn", 0.3), ("fp32", "sage", 0.3), ("fp32", "gat", 0.3)])
def test_one_step_of_all_rows_is_what_an_epoch_without_steps_computes(tmp_path, monkeypatch, dtype, model,
                                                                      edge_dropout):
    share_clusters(monkeypatch, 1000)
    shards = write(easy_graph(), np.zeros(240, np.int32), 1, tmp_path / "shards")
    gradients = []
    for num_steps in (1, 0):
        session, learner = opened(shards, steps="auto", precision=dtype, dropout=0.5, model=model,
                                  edge_dropout=edge_dropout)
        if num_steps:
            train_epoch(session, learner, 0, 0)
        else:
            for step in session.steps.steps(learner.model, 0, 0, 1, graph=session.graph_of(0, 0)):
                train_step(session, learner, step.graph, session.objective.of_rows(step.rows), Moment(0, 0))
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()]))
    assert (gradients[0] - gradients[1]).abs().max() < (1e-6 if dtype == "fp32" else 2e-2) * gradients[0].abs().max()


@pytest.mark.parallel([1, 2, 3])
def test_clusters_know_the_share_of_all_arcs_that_they_hold(shared_path, monkeypatch):
    monkeypatch.setattr("hpcgnn.steps.clusters.ROWS_A_CLUSTER", 20)
    dataset = easy_graph()
    session, _ = opened(write_once(COMM, dataset, shared_path / "shards"), steps="2")
    found, cluster = session.steps.clusters, np.empty(dataset.num_nodes, np.int64)
    for node_id, of_rank in COMM.allgather((session.graph.node_id[:session.graph.num_inner], found.inner)):
        cluster[node_id] = of_rank
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    assert found.inside == (cluster[target] == cluster[dataset.indices]).mean()
    assert 0 < found.inside < 1
