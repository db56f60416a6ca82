"""rgcn in training: P ranks train as one, by every method; what it refuses, and what a plan says of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference_partition import with_relations
from training_setup import assert_same_bits, easy_graph, losses, on_rank_zero, shared_path, train, write_once  # noqa: F401

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError, ConfigError
from hpcgnn.methods import METHODS
from hpcgnn.partition.build import build_partition
from hpcgnn.training import session
from hpcgnn.training.checkpoint import read_checkpoint

COMM = MPI.COMM_WORLD
RGCN = {"model": "rgcn", "layers": 3, "hidden": 8, "num_bases": 2, "epochs": 5, "eval_every": 5}
OPTIONS = {"uniform": {"bits": 4}, "adaqp": {"period": 3}, "joint": {"period": 3}, "bns": {"share": 0.5},
           "sancus": {"skip_change": 0.3}}


@pytest.fixture
def typed(monkeypatch, shared_path):  # noqa: F811
    """typed(comm) -> shards of a graph with relations."""
    dataset = with_relations(easy_graph(seed=1))
    read_part, read_info = session.read_part, session.read_shared_info

    def of_part(comm, shards, info):
        part, owner = read_part(comm, shards, info), np.empty(dataset.num_nodes, np.int32)
        for rank, ids in enumerate(comm.allgather(part.inner_id)):
            owner[ids] = rank
        made = build_partition(dataset, owner, comm.rank, comm.size)
        assert np.array_equal(made.indices, part.indices)
        return replace(part, edge_type=made.edge_type)

    monkeypatch.setattr(session, "read_part", of_part)
    monkeypatch.setattr(session, "read_shared_info",
                        lambda *given: replace(read_info(*given), relation_names=dataset.relation_names))
    return lambda comm: write_once(comm, dataset, shared_path / f"shards-{comm.size}")


def alone(typed, folder, **settings):
    """Collective: losses of one rank."""
    def run():
        return losses(train(MPI.COMM_SELF, typed(MPI.COMM_SELF), folder / "alone", **{**RGCN, **settings})[1])
    return on_rank_zero(COMM, run)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("settings", [
    {}, {"num_bases": 0, "norm": "batch"}, {"edge_dropout": 0.3}, {"residual": True, "input_dropout": 0.1},
    {"hidden": 40, "layers": 2}, {"rematerialize": True}, {"exchange": "alltoallv", "overlap": False}], ids=str)
def test_losses_of_ranks_are_those_of_one(shared_path, typed, settings):  # noqa: F811
    _, metrics, _ = train(COMM, typed(COMM), shared_path / "run", **{**RGCN, **settings})
    np.testing.assert_allclose(losses(metrics), alone(typed, shared_path, **settings), rtol=1e-5)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns(shared_path, typed, name):  # noqa: F811
    given = {**RGCN, **OPTIONS.get(name, {}), "epochs": 12, "method": name}
    _, metrics, _ = train(COMM, typed(COMM), shared_path / "run", **given)
    found = losses(metrics)
    assert len(found) == 12 and found[-1] < 0.9 * found[0]


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", [
    {"precision": "bf16"}, {"precision": "fp16", "num_bases": 0}, {"steps": "4"}, {"steps": "rows:3", "history": "8"},
    {"precision": "auto", "store_activations": 8}, {"node_embedding": 4, "steps": "2"}, {"task": "links"},
    {"label_inputs": 0.5, "ema": 0.9}], ids=str)
def test_other_settings_train_it(shared_path, typed, settings):  # noqa: F811
    _, metrics, _ = train(COMM, typed(COMM), shared_path / "run", **{**RGCN, "epochs": 12, **settings})
    found = losses(metrics)
    assert len(found) == 12 and found[-1] < 0.97 * found[0]
