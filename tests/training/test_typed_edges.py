"""Training over edges with relations and attributes, some parallel: ranks equal one process, and edges keep their own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import SMALL, easy_graph, losses, random_owner, train_as_one, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.data.cleaning import TypedEdges, build_typed_csr
from hpcgnn.errors import CollectiveError
from hpcgnn.graph.reductions import Reductions
from hpcgnn.ops.aggregation import multiply
from hpcgnn.ops.counter import EDGES, CounterKey
from hpcgnn.training.edge_dropout import place_among_parallel
from hpcgnn.training.session import Session

COMM = MPI.COMM_WORLD
NUM_NODES = 120
NAMES = ("cites", "likes", "reads")


def typed_graph():
    """A graph in which each edge has a relation and two attributes, and half of them a parallel one."""
    dataset = easy_graph(spec=f"synthetic:nodes={NUM_NODES},mean_degree=6,classes=3,features=8,signal=2")
    rng = np.random.default_rng(3)
    source, target = dataset.indices.astype(np.int64), np.repeat(np.arange(NUM_NODES), dataset.in_degree())
    again = np.concatenate([np.arange(len(source)), rng.permutation(len(source))[:len(source) // 2]])
    source, target = source[again], target[again]
    relation = rng.integers(0, 3, len(source)).astype(np.int32)
    attr = np.stack([10.0 * source + target, relation], axis=1) + rng.integers(0, 2, (len(source), 1)) / 4
    graph = build_typed_csr(TypedEdges(source, target, None, relation, attr.astype(np.float32)), NUM_NODES, False,
                            False, "g", NAMES)
    return replace(dataset, indptr=graph.indptr, indices=graph.indices, edge_type=graph.edge_type,
                   edge_attr=graph.edge_attr, relation_names=NAMES, cleaning=graph.report).check()


def assert_each_edge_has_its_own(graph):
    """Attributes of `typed_graph` say what their edge is."""
    ends = graph.node_id[graph.edge_index.numpy()]
    whole = np.floor(graph.edge_attr.numpy().astype(np.float64))
    np.testing.assert_array_equal(whole[:, 0], 10 * ends[0] + ends[1])
    np.testing.assert_array_equal(whole[:, 1], graph.edge_type.numpy())
    assert graph.edge_type.dtype == torch.int64 and graph.edge_attr.dtype == torch.float32


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("settings", [
    {"model": "gcn", "pre_aggregation": "on"}, {"model": "sage", "edge_dropout": 0.4, "input_dropout": 0.0},
    {"model": "gat"}, {"model": "sage-max"}])
def test_ranks_train_over_parallel_edges_as_one_process_does(shared_path, settings):
    _, metrics, _, expected = train_as_one(COMM, typed_graph(), shared_path, **{
        "epochs": 4, "lr": 0.01, "eval_every": 4, "dropout": 0.2, **settings})
    np.testing.assert_allclose(losses(metrics), losses(expected), rtol=1e-4)


@pytest.mark.parallel([1, 2, 3])
def test_rows_of_a_session_and_of_its_thinned_graph_keep_what_their_edges_carry(shared_path):
    shards = write_once(COMM, typed_graph(), shared_path / "shards")
    session = Session.open(COMM, shards, TrainConfig.of(**{**SMALL, "edge_dropout": 0.4, "input_dropout": 0.0}))
    assert_each_edge_has_its_own(session.graph)
    thinned = session.graph_of(0, 3)
    assert_each_edge_has_its_own(thinned)
    assert 0 < len(thinned.edge_type) < len(session.graph.edge_type)


@pytest.mark.parallel([1, 2])
def test_steps_keep_what_their_edges_carry(shared_path):
    shards = write_once(COMM, typed_graph(), shared_path / "shards")
    session = Session.open(COMM, shards, TrainConfig.of(**{**SMALL, "steps": "2"}))
    assert_each_edge_has_its_own(session.graph)


@pytest.mark.parallel([1, 2])
def test_models_that_do_not_take_relations_say_so_once(shared_path):
    shards = write_once(COMM, typed_graph(), shared_path / "shards")
    session = Session.open(COMM, shards, TrainConfig.of(**SMALL))
    assert [text for text in session.remarks if "relations" in text] == [
        "the graph's edges have 3 relations and 2 attributes, and gcn does not take them: it trains without; --model "
        "rgcn takes relations, models of your own take attributes, as edge_attr"]
    with_relations = Session.open(COMM, shards, TrainConfig.of(**{**SMALL, "model": "rgcn"}))
    assert [text for text in with_relations.remarks if "edges have" in text] == [
        "the graph's edges have 2 attributes, and rgcn does not take them: it trains without; models of your own take "
        "attributes, as edge_attr"]


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings, complaint", [
    ({"quantize": "uniform"}, "models of integers take no relations and attributes of edges, and this graph has some"),
    ({"clusters": 4}, "computes in batches without relations and attributes of edges, and this graph has some"),
])
def test_what_knows_no_parallel_edges_refuses_them(shared_path, settings, complaint):
    shards = write_once(COMM, typed_graph(), shared_path / "shards")
    with pytest.raises(CollectiveError, match=complaint):
        Session.open(COMM, shards, TrainConfig.of(**{**SMALL, **settings}))


@pytest.mark.parametrize("reduction", ["sum", "mean", "gcn"])
def test_reductions_count_each_parallel_edge(reduction):
    dataset, rng = typed_graph(), np.random.default_rng(0)
    count = np.zeros((NUM_NODES, NUM_NODES))
    target = np.repeat(np.arange(NUM_NODES), dataset.in_degree())
    np.add.at(count, (target, dataset.indices), 1)
    assert count.max() > 1
    degree = count.sum(axis=1)
    scale = {"sum": np.ones((NUM_NODES, 1)), "mean": 1 / np.maximum(degree, 1)[:, None],
             "gcn": 1 / np.sqrt(np.outer(degree + 1, degree + 1))}[reduction]
    if reduction == "gcn":
        count += np.eye(NUM_NODES)
    x = rng.normal(size=(NUM_NODES, 3)).astype(np.float32)
    forward, backward = Reductions(dataset.indptr, dataset.indices, NUM_NODES, degree.astype(np.int32), False,
                                   None).matrices(reduction)
    np.testing.assert_allclose(multiply(forward, torch.from_numpy(x)), (count * scale) @ x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(multiply(backward, torch.from_numpy(x)), (count * scale).T @ x, rtol=1e-4, atol=1e-5)


def test_the_place_of_an_edge_among_parallel_ones_counts_within_its_row():
    indptr, indices = np.array([0, 3, 3, 7, 8]), np.array([1, 1, 2, 2, 4, 4, 4, 4], np.int32)
    assert place_among_parallel(indptr, indices).tolist() == [0, 1, 0, 0, 0, 1, 2, 0]
    assert place_among_parallel(np.array([0, 0]), np.empty(0, np.int32)).tolist() == []


@pytest.mark.parallel([2])
def test_parallel_edges_are_dropped_each_by_itself(shared_path):
    dataset = typed_graph()
    write_once(COMM, dataset, shared_path / "shards")
    assert random_owner(dataset, 2).max() == 1
    session = Session.open(COMM, shared_path / "shards", TrainConfig.of(**{**SMALL, "edge_dropout": 0.5,
                                                                           "input_dropout": 0.0}))
    rows, kept = session.graph.rows, session.edges._kept
    place = place_among_parallel(rows.indptr, rows.indices)
    draws = np.concatenate([kept(CounterKey(0, epoch, EDGES, 0)) for epoch in range(40)]).reshape(40, -1)
    again = np.flatnonzero(place == 1)
    # Of two independent edges, half agree in an epoch: 40 epochs of some 100 pairs, 4 standard deviations around.
    share = (draws[:, again] == draws[:, again - 1]).mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(40 * len(again))
