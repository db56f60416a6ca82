"""rgcn in training: P ranks train as one, by every method; what it refuses, and what a plan says of it."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from covering import long_but
from mpi4py import MPI
from planning_setup import counted, small_cluster
from reference_partition import with_relations
from training_setup import (
    assert_same_bits,
    easy_graph,
    losses,
    on_rank_zero,
    shards_of,
    train,
    train_as_one,
    write_once,
)

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CheckpointError, CollectiveError, ConfigError
from hpcgnn.methods import METHODS
from hpcgnn.planning import graphs
from hpcgnn.planning.memory import memory_of
from hpcgnn.planning.messages import messages_of
from hpcgnn.planning.planner import Choices, make_plan
from hpcgnn.planning.recipe import size_of
from hpcgnn.results.export import exported
from hpcgnn.results.float_run import FloatRun
from hpcgnn.training import session
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.evaluate import check_reads, classes_of
from hpcgnn.training.forecast import forecast
from hpcgnn.training.job import Job
from hpcgnn.training.learner import Learner

COMM = MPI.COMM_WORLD
RGCN = {"model": "rgcn", "layers": 3, "hidden": 8, "num_bases": 2, "epochs": 3, "eval_every": 3}
OPTIONS = {"uniform": {"bits": 4}, "adaqp": {"period": 2}, "joint": {"period": 2}, "bns": {"share": 0.5},
           "sancus": {"skip_change": 0.3}}


def typed_graph():
    return with_relations(easy_graph(seed=1))


typed = shards_of(typed_graph)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("settings", [
    {}, {"num_bases": 0, "norm": "batch"}, {"residual": True, "input_dropout": 0.1, "edge_dropout": 0.3},
    {"hidden": 40, "layers": 2}, {"num_bases": 8, "num_blocks": 4},
    {"rematerialize": True}, {"exchange": "alltoallv", "overlap": False}], ids=str)
def test_losses_of_ranks_are_those_of_one(shared_path, settings):
    _, metrics, _, expected = train_as_one(COMM, typed_graph(), shared_path, **{**RGCN, **settings})
    np.testing.assert_allclose(losses(metrics), losses(expected), rtol=1e-5)


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("name", [name if name in ("adaqp", "bns", "joint", "sancus") else
                                  pytest.param(name, marks=pytest.mark.long) for name in METHODS])
def test_every_method_learns(shared_path, typed, name):
    given = {**RGCN, **OPTIONS.get(name, {}), "epochs": 6, "lr": 0.03, "method": name}
    _, metrics, _ = train(COMM, typed, shared_path / "run", **given)
    found = losses(metrics)
    assert len(found) == 6 and found[-1] < 0.9 * found[0]


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", long_but((1, 3, 5, 6, 8), [
    {"precision": "bf16"}, {"precision": "fp16", "num_bases": 0}, {"steps": "2"}, {"steps": "rows:3", "history": "8"},
    {"precision": "auto", "store_activations": 8}, {"node_embedding": 4, "steps": "2"}, {"task": "links"},
    {"num_bases": 8, "num_blocks": 2, "precision": "bf16", "steps": "2"},
    {"num_bases": 8, "num_blocks": 2, "precision": "fp16", "edge_dropout": 0.2},
    {"label_inputs": 0.5, "ema": 0.9}]), ids=str)
def test_other_settings_train_it(shared_path, typed, settings):
    _, metrics, _ = train(COMM, typed, shared_path / "run", **{**RGCN, "epochs": 6, "lr": 0.03, **settings})
    found = losses(metrics)
    assert len(found) == 6 and found[-1] < 0.97 * found[0]


@pytest.mark.parallel([1, 2])
def test_a_run_that_stops_goes_on_to_the_same_bits(shared_path, typed):
    shards, given = typed, {**RGCN, "node_embedding": 3, "dropout": 0.5, "checkpoint_every": 2, "eval_every": 2}
    train(COMM, shards, shared_path / "whole", **{**given, "epochs": 4})
    train(COMM, shards, shared_path / "half", **{**given, "epochs": 2})
    stopped = on_rank_zero(COMM, lambda: read_checkpoint(shared_path / "half" / "checkpoint.h5"))
    train(COMM, shards, shared_path / "half", resumed=stopped, **{**given, "epochs": 4})
    on_rank_zero(COMM, lambda: assert_same_bits(*(shared_path / name / "checkpoint.h5" for name in ("half", "whole"))))


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("model, more", [("sage", {}), ("gat", {"norm": "batch"}), ("gcn", {"rematerialize": True}),
                                         ("jknet", {"precision": "bf16"}), ("gcnii", {})])
def test_learned_rows_of_ranks_are_those_of_one(shared_path, typed, model, more):
    """Half the columns of the input are learned; without them the losses would be others."""
    given = {**RGCN, "model": model, "layers": 2, "dropout": 0.3, "num_bases": 8, "node_embedding": 12, "lr": 0.05,
             **more}
    _, metrics, run = train(COMM, typed, shared_path / "run", **given)
    one = on_rank_zero(COMM, lambda: write_once(MPI.COMM_SELF, typed_graph(), shared_path / "one"))
    expected = on_rank_zero(COMM, lambda: train(MPI.COMM_SELF, one, shared_path / "alone", **given)[1])
    np.testing.assert_allclose(losses(metrics), losses(expected), rtol=0.02 if "precision" in more else 1e-5)
    table = run.learner.model.embedding
    first = copy.deepcopy(table)
    first.reset_parameters()
    own = run.session.graph.node_index.sort().values
    found = COMM.allgather((torch.equal(table.node_index, own), (table.weight != first.weight).sum().item(), len(own)))
    assert [is_own for is_own, _, _ in found] == [True] * COMM.size
    # Nodes farther than two hops from the loss keep their first rows.
    assert sum(moved for _, moved, _ in found) > 6 * 240 and sum(rows for _, _, rows in found) == 240


@pytest.mark.parallel([1, 2])
def test_nodes_without_features_are_told_apart_by_learned_rows(shared_path):
    """Neighbors mostly have one label, and nothing else is known."""
    bare = replace(easy_graph(seed=2), features=np.zeros((240, 0), np.float32))
    shards = write_once(COMM, bare, shared_path / "shards")
    given = {"model": "sage", "dropout": 0.0, "epochs": 30, "eval_every": 10, "lr": 0.05}
    summary, _, _ = train(COMM, shards, shared_path / "run", **{**given, "node_embedding": 8})
    assert summary["test_score"] > 0.5      # of four classes
    with pytest.raises(CollectiveError, match=r"has no features to train on; .* --set node_embedding=64"):
        train(COMM, shards, shared_path / "refused", **given)


def test_a_graph_whose_edges_are_of_one_kind_is_refused(shared_path):
    shards = write_once(MPI.COMM_SELF, easy_graph(), shared_path / "shards")
    with pytest.raises(CollectiveError, match="model rgcn needs relations of edges, and this graph's edges are of one "
                                              "kind; preprocess a source whose edges have relations"):
        train(MPI.COMM_SELF, shards, shared_path / "run", **RGCN)
    with pytest.raises(ConfigError, match="model rgcn needs relations of edges"):
        make_plan(str(shards), None, Choices([1], ("vanilla",), model="rgcn"))


@pytest.mark.parametrize("settings, sentence", [
    ({"quantize": "uniform"}, "integer convolutions exist for gcn, sage, gin, gat only"),
    ({"clusters": 4}, "answers in batches with gcn, sage, gin, gat only"),
    ({"num_blocks": 4, "num_bases": 2}, "num_blocks 4 can't be used with num_bases 2: a relation's matrix is made of"),
    ({"model": "gat", "num_blocks": 3}, "num_blocks = 3 has no effect on model gat, only on rgcn"),
    ({"model": "gat", "num_bases": 3}, "num_bases = 3 has no effect on model gat, only on rgcn"),
    ({"model": "sgc", "node_embedding": 3}, "node_embedding = 3 has no effect on model sgc, only on"),
    ({"model": "gcn", "node_embedding": 3, "quantize": "uniform"},
     "node_embedding can't be used with quantize uniform: integers are fitted"),
    ({"model": "gcn", "node_embedding": 3, "pre_aggregation": "on"},
     "node_embedding can't be used with pre_aggregation on: sums"),
    ({"pre_aggregation": "on"}, "pre_aggregation on can't be used with model rgcn: its layers read rows"),
])
def test_what_has_no_meaning_is_refused_with_the_reason(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        TrainConfig.of(**{"model": "rgcn", **settings})


@pytest.mark.parametrize("settings, beside", [(RGCN, "the relations of edges"),
                                              ({"model": "sage", "node_embedding": 3}, "a learned row of each node")])
def test_a_model_that_reads_more_than_edges_is_not_exported(shared_path, typed, settings, beside):
    train(MPI.COMM_SELF, typed, shared_path / "run", **{**settings, "epochs": 1})
    with pytest.raises(CheckpointError, match=f"reads x and edge_index alone, and this .* reads {beside} too"):
        exported(shared_path / "run")


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", [{}, {"hidden": 4, "num_bases": 2}, {"precision": "bf16", "norm": "batch"},
                                      {"num_bases": 8, "num_blocks": 4},
                                      {"num_bases": 8, "num_blocks": 2, "precision": "bf16"}],
                         ids=str)
def test_a_plan_has_the_bytes_and_the_activations_of_the_training(shared_path, typed, monkeypatch,
                                                                  settings):
    shards, given = typed, {**RGCN, "hidden": 20, "sum_bits": 32, **settings}
    read = graphs.read_graph_info
    monkeypatch.setattr(graphs, "read_graph_info", lambda folder: replace(read(folder), relation_names=tuple("abcde")))
    _, metrics, _ = train(COMM, shards, shared_path / "run", **given)
    own = {name: given[name] for name in ("model", "layers", "hidden", "precision", "norm") if name in given}
    planned, = make_plan(str(shards), None, Choices([COMM.size], ("vanilla",), settings={
        name: value for name, value in given.items() if name not in own}, **own)).predictions
    assert [one["sent_bytes_payload"] + one["sent_bytes_parameters"] for one in metrics] == [planned.sent.total] * 3
    assert COMM.size == 1 or planned.sent.total > 0

    monkeypatch.setattr("hpcgnn.training.forecast.evaluate", lambda *_: None)
    found = forecast(COMM, Job(shards=shards, settings={**given, "epochs": 1}))
    (graph, loads), config = counted(shards, 3, computes_all=True), TrainConfig.of(**given)
    size = size_of(config, graph.num_features, graph.num_classes, num_relations=5)
    memory = memory_of(size, loads, messages_of("vanilla", config, size), small_cluster())
    activations = np.array([rank.activations for rank in found.memory])
    assert memory["activations"] == pytest.approx(activations, rel=0.1, abs=8000)


@pytest.mark.parallel([1, 2])
def test_a_graph_of_other_relations_is_refused_to_models_that_read_them(shared_path, typed):
    """In another order, the matrices would be of the wrong relations."""
    shards, dataset = typed, with_relations(easy_graph(seed=1))
    for model in ("rgcn", "gcn"):
        settings = {**RGCN, "epochs": 1} if model == "rgcn" else {"model": model, "epochs": 1}
        train(COMM, shards, shared_path / model, **settings)
    names = dataset.relation_names
    checkpoint = on_rank_zero(COMM, lambda: read_checkpoint(shared_path / "rgcn/checkpoint.h5"))
    for number, (others, words) in enumerate([
            (names[::-1], "in another order"), ((*names[:-1], "hates"), f"such as '{names[-1]}'"),
            ((*names, "hates"), "fewer than")]):
        other = write_once(COMM, replace(dataset, relation_names=others), shared_path / f"other-{number}")
        info = session.read_shared_info(COMM, other)
        with pytest.raises(CollectiveError, match=words):
            FloatRun.open(COMM, shared_path / "rgcn", other, info, other_graph=True)
        with pytest.raises(CollectiveError, match=words):
            Learner.start(session.Session.open(COMM, other, TrainConfig.of(**RGCN)), 0, checkpoint)
        FloatRun.open(COMM, shared_path / "gcn", other, info, other_graph=True)
    # Relations with columns of attributes of their own have places in these, also for a model that reads no relations.
    info = replace(info, relation_columns=(2,) + (1,) * (len(info.relation_names) - 1))
    model, classes = SimpleNamespace(takes_attributes=True), classes_of(info)
    check_reads(model, info, classes)
    with pytest.raises(ConfigError, match="columns of the relations"):
        check_reads(model, replace(info, relation_names=info.relation_names[::-1]), classes)
