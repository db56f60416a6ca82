"""Settings of recipes that users of PyTorch Geometric know: P ranks train as one does, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from covering import long_but
from made_steps import share_clusters
from mpi4py import MPI
from reference import draws_of, stream_of
from reference_models import mean_loss, peer_logits
from training.test_equals_serial import assert_trains_as_one, cut_by_metis
from training_setup import SMALL, easy_graph, losses, train, train_as_one, write, write_once

from hpcgnn.config import TrainConfig, settings_of
from hpcgnn.errors import CheckpointError, CollectiveError, ConfigError, TrainingError
from hpcgnn.lowbit.inference.model_source import integer_config
from hpcgnn.nn.models import MODELS, ModelShape
from hpcgnn.nn.names import RELATIONAL
from hpcgnn.ops.counter import EDGES, LABELS
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch

COMM = MPI.COMM_WORLD
RECIPES = {
    "input dropout, ema": {"model": "sage", "input_dropout": 0.1, "ema": 0.9},
    "batch norm": {"model": "gcn", "norm": "batch", "edge_dropout": 0.4},
    "batch norm of a gin": {"model": "gin", "norm": "batch", "input_dropout": 0.0},
    "rematerialized": {"model": "sage", "residual": True, "norm": "batch", "rematerialize": True, "layers": 4},
    "adamw": {"model": "gcn", "optimizer": "adamw", "weight_decay": 0.05},
    "edge dropout of a sage": {"model": "sage", "edge_dropout": 0.3, "input_dropout": 0.0},
    "edge dropout of a gat": {"model": "gat", "edge_dropout": 0.3},
    "labels as inputs": {"model": "sage", "label_inputs": 0.5, "input_dropout": 0.0},
    "labels as inputs of a gat": {"model": "gat", "label_inputs": 0.6, "norm": "batch"},
    "all": {"model": "sage", "input_dropout": 0.0, "norm": "batch", "residual": True, "optimizer": "adamw",
            "weight_decay": 0.05, "ema": 0.8, "layers": 4},
}


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("recipe", long_but((0, 1, 3, 4, 8, 9), RECIPES))
def test_ranks_train_as_one(shared_path, monkeypatch, recipe):
    # A bias before a batch norm has no gradient but rounding errors, which Adam makes as large as any gradient.
    # Training subtracts it again, but the means of an evaluation are older: so it stays 0 here.
    if RECIPES[recipe].get("norm") == "batch":
        make = Session.float_model

        def with_frozen_biases(session, seed):
            model = make(session, seed)
            for convolution in model.convolutions[:-1]:
                getattr(convolution, "second", convolution).bias.requires_grad_(False)
            return model

        monkeypatch.setattr(Session, "float_model", with_frozen_biases)
    assert_trains_as_one(COMM, cut_by_metis, shared_path, **{"layers": 3, "hidden": 16, **RECIPES[recipe]})


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("recipe", ["batch norm", "all"])
def test_ranks_train_as_one_in_steps(shared_path, monkeypatch, recipe):
    share_clusters(monkeypatch)
    _, found, _, expected = train_as_one(COMM, easy_graph(), shared_path, **{
        "layers": 3, "hidden": 16, "dropout": 0.5, "epochs": 3, "eval_every": 3, "steps": "4", **RECIPES[recipe]})
    np.testing.assert_allclose(losses(found), losses(expected), rtol=1e-4)


def test_scores_and_best_weights_are_those_of_the_moving_average(shared_path):
    dataset = easy_graph()
    shards = write(dataset, np.zeros(dataset.num_nodes, np.int32), 1, shared_path / "shards")
    runs = {}
    for ema in (0.0, 0.9):
        _, metrics, _ = train(MPI.COMM_SELF, shards, shared_path / str(ema), ema=ema, epochs=3, eval_every=1)
        runs[ema] = losses(metrics), read_checkpoint(shared_path / str(ema) / "checkpoint.h5")
    assert np.array_equal(runs[0.0][0], runs[0.9][0])      # training never reads the average
    checkpoint = runs[0.9][1]
    assert checkpoint.average.num_steps == 3 and checkpoint.progress.best_epoch == 3
    for name, weights in checkpoint.average.weights.items():
        assert np.array_equal(checkpoint.best_model[name].numpy(), weights.numpy())
        assert np.array_equal(checkpoint.model[name].numpy(), runs[0.0][1].model[name].numpy())


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in RELATIONAL])
def test_an_epoch_has_the_sums_of_pyg_on_its_thinned_graph(shared_path, monkeypatch, name, weighted):
    monkeypatch.setattr("hpcgnn.training.edge_dropout.EDGES_AT_ONCE", 97)
    weighted, dataset = weighted and name not in ("sage-max", "gat"), easy_graph(seed=5)
    if weighted:
        weight = np.random.default_rng(0).uniform(0.5, 2, dataset.num_edges).astype(np.float32)
        dataset = replace(dataset, edge_weight=weight)
    shards = write_once(COMM, dataset, shared_path / "shards")
    settings = {**SMALL, "model": name, "dropout": 0.0, "edge_dropout": 0.3, "layers": 3}
    session = Session.open(COMM, shards, TrainConfig.of(**settings))
    graph, model = session.graph_of(7, 5), session.float_model(0)
    reference = copy.deepcopy(model).double()
    graph.begin_forward(7, 5, is_training=True)
    out = model(graph, graph.x)
    out.square().sum().backward()
    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    pair = target.astype(np.int64) * dataset.num_nodes + dataset.indices
    kept = draws_of(pair, 1, 7, 5, stream_of(EDGES, 0))[:, 0] >= round(0.3 * 2**16)
    assert abs(kept.mean() - 0.7) < 0.05
    thin = replace(dataset, indptr=np.concatenate([[0], np.cumsum(kept)])[dataset.indptr],
                   indices=dataset.indices[kept], **({"edge_weight": weight[kept]} if weighted else {}))
    shape = ModelShape(name, 12, 8, 4, 3, 0.0, "layer")
    expected = peer_logits(reference, shape, thin, edge_weight=thin.edge_weight)
    expected.square().sum().backward()
    mine = expected.detach()[graph.node_id[:graph.num_inner]]
    np.testing.assert_allclose(out.detach().numpy(), mine.numpy(), atol=1e-5 * float(mine.abs().max()))
    largest = max(float(parameter.grad.abs().max()) for parameter in reference.parameters())
    for found, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        assert np.abs(COMM.allreduce(found.grad.double().numpy()) - wanted.grad.numpy()).max() <= 1e-5 * largest


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loss_is_over_training_nodes_whose_labels_are_no_input(shared_path, precision):
    dataset, share, seed = easy_graph(), 0.4, 3
    shards = write(dataset, np.zeros(dataset.num_nodes, np.int32), 1, shared_path / "shards")
    config = TrainConfig.of(**{**SMALL, "dropout": 0.0, "label_inputs": share, "model": "sage", "precision": precision})
    session = Session.open(MPI.COMM_SELF, shards, config)
    graph, node_id = session.graph, session.graph.node_id
    one_hot = np.eye(4, dtype=np.float32)[dataset.labels] * dataset.train_mask[:, None]
    assert np.array_equal(graph.x[:, 12:].float().numpy(), one_hot[node_id])
    learner, given = Learner.start(session, 0, None), []
    for epoch in range(3):
        objective = session.begin_labels(seed, epoch)
        draws = draws_of(np.arange(dataset.num_nodes), 2, seed, epoch, stream_of(LABELS, 0)).astype(np.int64)
        is_given = dataset.train_mask & (draws[:, 0] + (draws[:, 1] << 16) < share * 2 ** 32)
        features = np.concatenate([dataset.features, one_hot * is_given[:, None]], axis=1)
        np.testing.assert_allclose(graph.x.float().numpy(), features[node_id], rtol=1e-2 if precision == "bf16" else 0)
        rows = np.zeros(dataset.num_nodes, bool)
        rows[node_id[objective.rows["train"].numpy()]] = True
        assert np.array_equal(rows, dataset.train_mask & ~is_given) and 0 < rows.sum() < dataset.train_mask.sum()
        given.append(is_given)
        session.end_labels()
        assert np.array_equal(graph.x[:, 12:].float().numpy(), one_hot[node_id])
        if precision == "fp32":
            shape = ModelShape("sage", 16, 8, 4, 2, 0.0, "layer")
            logits = peer_logits(copy.deepcopy(learner.model).double(), shape, replace(dataset, features=features))
            labels, mask = torch.from_numpy(dataset.labels.astype(np.int64)), torch.from_numpy(rows)
            expected = mean_loss(logits, labels, mask, mask.sum()).item()
            assert train_epoch(session, learner, seed, epoch).loss == pytest.approx(expected, rel=1e-5)
    assert not np.array_equal(given[0], given[1])


@pytest.mark.parametrize("spec, complaint", [
    ("synthetic:nodes=120,mean_degree=6,classes=5,features=8,multi_label=true", "these labels are multi-label; leave"),
    ("synthetic:nodes=60,mean_degree=6,classes=3,features=6,signal=2", "none is left for the loss; give a smaller")])
def test_labels_that_can_not_be_inputs_are_refused(shared_path, spec, complaint):
    dataset = easy_graph(spec=spec)
    first = np.arange(dataset.num_nodes) == np.flatnonzero(dataset.train_mask)[0]
    one = replace(dataset, train_mask=first)
    shards = write(one, np.zeros(dataset.num_nodes, np.int32), 1, shared_path / "shards")
    with pytest.raises((CollectiveError, TrainingError), match=complaint):
        train(MPI.COMM_SELF, shards, shared_path / "run", label_inputs=0.99, epochs=50)


@pytest.mark.covering(1)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gcnii", "jknet", "appnp"])
def test_batch_norms_of_16_bit_rows_learn_as_those_of_32(shared_path, precision, model):
    dataset = easy_graph()
    shards = write(dataset, np.zeros(dataset.num_nodes, np.int32), 1, shared_path / "shards")
    found = [losses(train(MPI.COMM_SELF, shards, shared_path / kind, model=model, norm="batch", precision=kind,
                          epochs=4)[1]) for kind in ("fp32", precision)]
    np.testing.assert_allclose(found[1], found[0], rtol=0.05)


@pytest.mark.parametrize("settings, complaint", [
    ({"norm": "batch"}, "run was trained with --norm batch, which integers do not have; train with --norm layer or"),
    ({"residual": True, "layers": 3}, "run was trained with residual sums, which integers do not have; train without"),
    ({"label_inputs": 0.5}, "run was trained with label_inputs, and integers read features only; train without them")])
def test_integers_of_models_that_have_none_are_refused(settings, complaint):
    with pytest.raises(CheckpointError) as refused:
        integer_config(settings_of(TrainConfig.of(**settings)), Path("run"), "cpu")
    assert str(refused.value).startswith(complaint)


@pytest.mark.parametrize("settings, complaint", [
    ({"input_dropout": -0.5}, "input_dropout must be -1 or a probability, found -0.5"),
    ({"input_dropout": 0.1, "model": "mine:Net"}, "input_dropout = 0.1 has no effect on model mine:Net, only on gcn, "),
    ({"norm": "batch", "model": "sgc"}, "norm batch can't be used with model sgc: it has no hidden layers"),
    ({"norm": "batch", "model": "mine:Net"}, "norm batch has no effect on model mine:Net, only on built-in ones"),
    ({"norm": "batch", "quantize": "uniform"}, "norm batch can't be used with quantize uniform: integers have no ba"),
    ({"norm": "batch", "pre_aggregation": "on"}, "norm batch can't be used with pre_aggregation on: statistics are"),
    ({"residual": True, "layers": 2}, "residual has no effect on 2 layers, only on 3 or more; leave it out, or "),
    ({"residual": True, "model": "appnp"}, "residual = True has no effect on model appnp, only on gcn, sage, sage-max"),
    ({"residual": True, "quantize": "uniform"}, "residual can't be used with quantize uniform: integers have no resid"),
    ({"optimizer": "adamw"}, "optimizer adamw is adam if weight_decay is 0; set --weight-decay too, such as 0.01"),
    ({"edge_dropout": 0.5, "pre_aggregation": "on"}, "edge_dropout can't be used with pre_aggregation on: sums befor"),
    ({"edge_dropout": 0.5, "quantize": "uniform"}, "edge_dropout can't be used with quantize uniform: steps and width"),
    ({"edge_dropout": 0.5, "model": "mine:Net"}, "edge_dropout = 0.5 has no effect on model mine:Net, only on gcn, sa"),
    ({"label_inputs": 0.5, "steps": "4"}, "label_inputs can't be used with steps 4: it reads rows of earlier epochs, "),
    ({"label_inputs": 0.5, "method": "pipegcn"}, "label_inputs can't be used with method pipegcn: it reads rows of e"),
    ({"label_inputs": 0.5, "method": "sancus"}, "label_inputs can't be used with method sancus: it reads rows of ear"),
    ({"label_inputs": 0.5, "quantize": "uniform"}, "label_inputs can't be used with quantize uniform: integers are "),
    ({"label_inputs": 0.5, "model": "sgc"}, "label_inputs = 0.5 has no effect on model sgc, only on gcn, sage, sage-m"),
    ({"ema": 0.9, "average": 0.5, "steps": "4"}, "average 0.5 has no effect with ema; leave one out"),
])
def test_settings_without_effect_are_refused(settings, complaint):
    with pytest.raises(ConfigError) as refused:
        TrainConfig.of(**settings)
    assert str(refused.value).startswith(complaint)
