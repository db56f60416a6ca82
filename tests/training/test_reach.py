"""Rows that can't reach the loss are left out of training: the same gradients, fewer bytes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import SMALL, arcs_where, easy_graph, losses, random_owner, train, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch


def sparse_graph(directed):
    """A path-like graph in which few nodes train, so that most rows are far from the loss."""
    dataset = easy_graph(seed=3, spec="synthetic:nodes=240,mean_degree=3,classes=4,features=12,signal=2")
    is_trained = np.arange(dataset.num_nodes) % 40 == 0
    dataset = replace(dataset, train_mask=is_trained, val_mask=dataset.val_mask & ~is_trained,
                      test_mask=dataset.test_mask & ~is_trained)
    return arcs_where(dataset, lambda source, target: source < target) if directed else dataset


def first_gradients(comm, shards, **settings):
    """Collective: gradients of the first epoch, the same on all ranks, and what it cost."""
    session = Session.open(comm, shards, TrainConfig.of(**{**SMALL, "dropout": 0.5, **settings}))
    learner = Learner.start(session, 0, None)
    trace = train_epoch(session, learner, seed=0, epoch=0)
    return torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()]).numpy(), trace


@pytest.mark.covering
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("hidden, layers", [(8, 2), (20, 3), (3, 4)])
def test_gradients_are_those_of_all_rows(shared_path, model, hidden, layers, directed):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, sparse_graph(directed), shared_path / "shards")
    settings = {"model": model, "hidden": hidden, "layers": layers}
    few, few_trace = first_gradients(comm, shards, epoch_rows="reachable", **settings)
    every, all_trace = first_gradients(comm, shards, epoch_rows="all", **settings)
    np.testing.assert_allclose(few, every, atol=1e-6 * np.abs(every).max())
    assert few_trace.loss == pytest.approx(all_trace.loss, rel=1e-6)
    assert np.abs(every).max() > 1e-3


@pytest.mark.parallel([2, 3])
def test_only_rows_within_reach_are_sent(shared_path):
    """One hop before the loss, rows next to a training node of another rank; two hops before it, their sources."""
    comm, dataset = MPI.COMM_WORLD, sparse_graph(directed=False)
    shards = write_once(comm, dataset, shared_path / "shards")
    _, trace = first_gradients(comm, shards, layers=3, hidden=16)
    owner = random_owner(dataset, comm.size)
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    needed, num_values = dataset.train_mask.copy(), 0
    for width in (4, 16):    # the last layer maps 16 to 4 columns before it sends, the middle one sends 16
        arcs = needed[target] & (owner[dataset.indices] != owner[target])
        num_values += width * len(set(zip(dataset.indices[arcs], owner[target][arcs], strict=True)))
        needed[dataset.indices[needed[target]]] = True
    assert trace.sent_bytes_payload == 2 * 4 * num_values
    _, whole = first_gradients(comm, shards, layers=3, hidden=16, epoch_rows="all")
    assert 0 < trace.sent_bytes_payload < 0.5 * whole.sent_bytes_payload


@pytest.mark.parallel([1, 2])
def test_training_and_its_scores_are_those_of_all_rows(shared_path):
    comm = MPI.COMM_WORLD
    shards = write_once(comm, sparse_graph(directed=False), shared_path / "shards")
    summaries = []
    for rows in ("reachable", "all"):
        summary, metrics, _ = train(comm, shards, shared_path / rows, epoch_rows=rows, layers=3, epochs=6)
        counts = summary["rows_within"]
        assert counts == [] if rows == "all" else counts[0] == 6 and counts == sorted(counts)
        summaries.append((losses(metrics), summary["test_score"], summary["val_score"]))
    np.testing.assert_allclose(summaries[0][0], summaries[1][0], rtol=1e-4)
    assert summaries[0][1:] == pytest.approx(summaries[1][1:], abs=0.02)
