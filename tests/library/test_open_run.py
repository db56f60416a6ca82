"""A run that has ended is opened again: its answers, and its exported weights, are those of PyG on one process."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
import torch_geometric.nn as pyg
from mpi4py import MPI
from reference_models import edge_index_of
from torch_geometric.data import Data
from training_setup import easy_graph, on_rank_zero

import hpcgnn
from hpcgnn.errors import CollectiveError, HpcgnnError
from hpcgnn.results.export import exported, write_exported

SETTINGS = {"method": "uniform", "bits": 4, "epochs": 2, "eval_every": 2}


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


def test_columns_of_features_in_another_order_are_refused(tmp_path):
    """Their values would meet the weights of other columns."""
    rng = np.random.default_rng(0)
    nodes = pandas.DataFrame({"id": np.arange(40), "label": np.arange(40) % 2, "age": rng.normal(size=40),
                              "income": rng.normal(size=40)})
    edges = pandas.DataFrame({"source": np.arange(40), "target": np.roll(np.arange(40), 1)})
    for name, table in (("one", nodes), ("other", nodes[["id", "income", "age", "label"]]),
                        ("fewer", nodes[["id", "age", "label"]]), ("again", nodes)):
        hpcgnn.preprocess(edges, nodes=table, parts=1, out=tmp_path / name)
    hpcgnn.fit("sage", hpcgnn.open(tmp_path / "one"), out=tmp_path / "run", epochs=2)
    expected, found = (hpcgnn.open_run(tmp_path / "run", tmp_path / name, other_graph=True).predict().logits
                       for name in ("one", "again"))
    np.testing.assert_array_equal(found, expected)
    for name, there in (("other", "'income' there"), ("fewer", "None there")):
        with pytest.raises(HpcgnnError, match=there):
            hpcgnn.open_run(tmp_path / "run", tmp_path / name, other_graph=True).predict()


def test_a_model_with_the_same_weights_and_other_answers_is_noticed(graph, shared_path):
    """GraphSAGE of the settings' sizes takes means, and a maximum was trained."""
    torch.manual_seed(0)
    hpcgnn.fit(pyg.GraphSAGE(12, 256, 3, 4, aggr="max"), graph, out=shared_path / "run", **SETTINGS | {"epochs": 6})
    with pytest.raises(CollectiveError, match=r"the model that was given to hpcgnn\.fit was another"):
        hpcgnn.open_run(shared_path / "run", graph)
    hpcgnn.fit(make(), graph, out=shared_path / "relu", **SETTINGS)
    with pytest.raises(CollectiveError, match=r"as it is given, has .*the model that was given to hpcgnn\.fit was"):
        hpcgnn.open_run(shared_path / "relu", graph, model=make(act=torch.abs))


def test_a_graph_of_fewer_columns_is_refused_for_an_own_model(graph, shared_path):
    hpcgnn.fit(make(), graph, out=shared_path / "run", **SETTINGS)
    whole = easy_graph()
    hpcgnn.preprocess(
        Data(
            x=torch.from_numpy(whole.features[:, :7]),
            y=torch.from_numpy(whole.labels).long(),
            edge_index=edge_index_of(whole),
        ),
        parts=1,
        out=shared_path / "fewer",
    )
    with pytest.raises(CollectiveError, match=r"trained on 12 columns of features, and .* has 7; give the source"):
        hpcgnn.open_run(shared_path / "run", shared_path / "fewer", model=make(), other_graph=True)
