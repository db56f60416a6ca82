"""A run that has ended is opened again: its answers, and its exported weights, are those of PyG on one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from mpi4py import MPI
from reference_models import edge_index_of
from training_setup import easy_graph, on_rank_zero, write_once

import hpcgnn
from hpcgnn.errors import CollectiveError
from hpcgnn.results.export import exported, write_exported

SETTINGS = {"method": "uniform", "bits": 4, "epochs": 6, "eval_every": 2}


@pytest.fixture
def graph(shared_path):
    return hpcgnn.open(write_once(MPI.COMM_WORLD, easy_graph(), shared_path / "shards"))


def make(**options):
    torch.manual_seed(0)
    return pyg.GraphSAGE(12, 8, 2, 4, dropout=0.2, **options)


@pytest.mark.parallel([1, 2])
def test_a_model_of_pyg_goes_the_whole_round(graph, shared_path):
    comm, out, path = MPI.COMM_WORLD, shared_path / "run", shared_path / "m.safetensors"
    run = hpcgnn.fit(make(), graph, out=out, **SETTINGS)
    opened = hpcgnn.open_run(out, graph.shards, model=make)
    answers = opened.predict(embeddings=True)
    scores = opened.scores(opened.answer())
    assert scores["test"] == pytest.approx(run.test_score)
    on_rank_zero(comm, lambda: write_exported(path, *exported(out)))
    plain = hpcgnn.load_model(path, model=make())
    dataset = easy_graph()
    x, edges = torch.from_numpy(dataset.features), edge_index_of(dataset)
    with torch.no_grad():
        hidden = torch.relu(plain.convs[0](x, edges))
        logits = plain.convs[1](hidden, edges)
    assert type(plain) is pyg.GraphSAGE and torch.equal(plain(x, edges), logits)
    if comm.rank == 0:
        np.testing.assert_allclose(answers.logits, logits.numpy(), atol=1e-5, rtol=1e-4)
        np.testing.assert_allclose(answers.embeddings, hidden.numpy(), atol=1e-5, rtol=1e-4)


@pytest.mark.parallel([1, 2])
def test_a_model_that_only_its_program_knows_must_be_given_again(graph, shared_path):
    hpcgnn.fit(make(aggr="max"), graph, out=shared_path / "run", **SETTINGS)
    with pytest.raises(CollectiveError, match=r"give it again, to hpcgnn\.open_run\(\.\., model=\.\.\)"):
        hpcgnn.open_run(shared_path / "run", graph)


def test_a_model_with_the_same_weights_and_other_answers_is_noticed(graph, shared_path):
    """GraphSAGE of the settings' sizes takes means, and a maximum was trained."""
    torch.manual_seed(0)
    hpcgnn.fit(pyg.GraphSAGE(12, 256, 3, 4, aggr="max"), graph, out=shared_path / "run", **SETTINGS)
    with pytest.raises(CollectiveError, match=r"the model that was given to hpcgnn\.fit was another"):
        hpcgnn.open_run(shared_path / "run", graph)
