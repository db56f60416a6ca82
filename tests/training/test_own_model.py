"""A model of one's own is found by its import path and trains like a built-in one, with all that a run has."""

from __future__ import annotations

import sys

import pytest
import torch
from mpi4py import MPI
from training_setup import losses, train, without_seconds

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.nn.models import ModelShape, ModelTraits, build_model, traits_of
from hpcgnn.nn.names import MODEL_PATHS
from hpcgnn.nn.stack import SAGE

COMM = MPI.COMM_WORLD


class OwnSAGE(SAGE):
    """What `--model sage` builds."""

    def __init__(self, in_dim, hidden_dim, out_dim, num_layers, dropout):
        super().__init__(in_dim, hidden_dim, out_dim, num_layers, dropout, "layer")


class Plain(torch.nn.Module):
    """A model that knows nothing of hpcgnn but `graph.halo` and `graph.edge_index`, and sums its neighbors."""

    reduction = "sum"

    def __init__(self, in_dim, hidden_dim, out_dim, num_layers, dropout):
        super().__init__()
        self.first, self.last = torch.nn.Linear(in_dim, hidden_dim), torch.nn.Linear(hidden_dim, out_dim)

    def forward(self, graph, x):
        h_all = torch.relu(self.first(graph.halo(x)))
        source, target = graph.edge_index
        summed = torch.zeros(graph.num_inner, h_all.shape[1]).index_add_(0, target, h_all[source])
        return self.last(h_all[:graph.num_inner] + summed)


class Named(torch.nn.Module):
    """Takes sizes by the names that PyTorch Geometric gives them, and more."""

    def __init__(self, in_channels, hidden_channels, out_channels=None, *, bias, scale=1.0, **more):
        super().__init__()
        self.taken = in_channels, hidden_channels, out_channels, bias, scale, more


class Unmakeable(torch.nn.Module):
    """Its constructor takes other arguments."""

    def __init__(self, width):
        super().__init__()


@pytest.fixture
def module(monkeypatch):
    """The name by which this file can be imported in this process."""
    monkeypatch.setitem(sys.modules, "own_model_of_a_test", sys.modules[__name__])
    return "own_model_of_a_test"


@pytest.mark.parallel([1, 2])
def test_an_own_copy_of_a_built_in_model_trains_bit_for_bit_as_that(shared_path, shards, module):
    _, expected, _ = train(COMM, shards, shared_path / "sage", model="sage", dropout=0.5)
    summary, found, _ = train(COMM, shards, shared_path / "own", model=f"{module}:OwnSAGE", dropout=0.5)
    assert without_seconds(found) == without_seconds(expected)
    assert summary["model"] == f"{module}:OwnSAGE"


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("method", ["vanilla", "adaqp"])
def test_a_plain_torch_model_learns_by_methods_that_weigh_its_sums(shared_path, shards, module, method):
    summary, metrics, _ = train(COMM, shards, shared_path / "own", model=f"{module}:Plain", method=method, epochs=20,
                                lr=0.03, **({"period": 5, "group_size": 20} if method == "adaqp" else {}))
    assert losses(metrics)[-1] < losses(metrics)[0] / 3
    assert summary["test_score"] > 0.6      # chance is 0.25


def test_traits_are_those_that_the_class_states(module):
    def traits(name: str) -> ModelTraits:
        return traits_of(build_model(ModelShape(name, 3, 4, 2, 2, 0.0)), num_layers=2)

    assert traits(f"{module}:Plain") == ModelTraits("sum", False, 2)
    assert traits(f"{module}:OwnSAGE") == ModelTraits("mean", False, 2, weighs_self=True)
    assert traits("gat") == ModelTraits("mean", True, 2)


@pytest.mark.parametrize("name, complaint", [
    ("sag", f"model must be one of {', '.join(MODEL_PATHS)}, or MODULE:CLASS, found 'sag'"),
    ("{module}:COMM", "model {module}:COMM is no subclass of torch.nn.modules.module.Module"),
    ("{module}:Missing", "model {module}:Missing can't be imported: module "),
    ("{module}:Unmakeable", "model {module}:Unmakeable can't be made from in_dim, hidden_dim, out_dim, num_layers and "
                            "dropout: "),
])
def test_what_is_no_model_is_refused(module, name, complaint):
    with pytest.raises(ConfigError) as refused:
        config = TrainConfig.of(model=name.format(module=module))
        build_model(ModelShape(config.model, 3, 4, 2, 2, 0.0, "layer"))
    assert str(refused.value).startswith(complaint.format(module=module))


def test_a_constructor_gets_the_sizes_that_it_names_and_the_arguments_that_are_given(module):
    shape = ModelShape(f"{module}:Named", 3, 4, 2, 5, 0.0, arguments={"bias": False, "scale": 2.5, "act": "elu"})
    assert build_model(shape).taken == (3, 4, 2, False, 2.5, {"act": "elu"})
    wider = ModelShape(f"{module}:Named", 3, 4, 2, 5, 0.0, arguments={"bias": True, "hidden_channels": 64})
    assert build_model(wider).taken == (3, 64, 2, True, 1.0, {})


@pytest.mark.parametrize("arguments, complaint", [
    ({"scale": 2.0}, "can't be made from in_channels=3, hidden_channels=4, out_channels=2, scale=2.0: "),
    ({}, "can't be made from in_dim, hidden_dim, out_dim, num_layers and dropout: ")])
def test_arguments_that_a_constructor_does_not_take_or_lacks_are_refused(module, arguments, complaint):
    with pytest.raises(ConfigError) as refused:
        build_model(ModelShape(f"{module}:Named", 3, 4, 2, 5, 0.0, arguments=arguments))
    assert complaint in str(refused.value) and "model_args gives what else" in str(refused.value)


@pytest.mark.parametrize("settings, complaint", [
    ({"model": "mine:Mine", "model_args": "[1]"}, "model_args must be a JSON object"),
    ({"model": "mine:Mine", "model_args": "heads=8"}, "model_args must be a JSON object"),
    ({"model": "gat", "model_args": '{"heads": 8}'}, "model_args has no effect on model gat, only on your own")])
def test_arguments_are_a_json_object_for_a_model_of_ones_own(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        TrainConfig.of(**settings)
