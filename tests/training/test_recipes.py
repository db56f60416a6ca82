"""Settings of recipes that users of PyTorch Geometric know: P ranks train as one does, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from made_steps import share_clusters
from mpi4py import MPI
from training.test_equals_serial import assert_trains_as_one, cut_by_metis
from training_setup import easy_graph, losses, on_rank_zero, random_owner, train, write

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.training.checkpoint import read_checkpoint

COMM = MPI.COMM_WORLD
RECIPES = {
    "input dropout": {"model": "sage", "input_dropout": 0.1},
    "batch norm": {"model": "gcn", "norm": "batch"},
    "batch norm of a gin": {"model": "gin", "norm": "batch", "input_dropout": 0.0},
    "residual": {"model": "sage", "residual": True, "layers": 4},
    "adamw": {"model": "gcn", "optimizer": "adamw", "weight_decay": 0.05},
    "ema": {"model": "sage", "ema": 0.9},
    "all": {"model": "sage", "input_dropout": 0.0, "norm": "batch", "residual": True, "optimizer": "adamw",
            "weight_decay": 0.05, "ema": 0.8, "layers": 4},
}


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("recipe", RECIPES)
def test_ranks_train_as_one(shared_path, recipe):
    assert_trains_as_one(COMM, cut_by_metis, shared_path, **{"layers": 3, "hidden": 16, **RECIPES[recipe]})


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("recipe", ["batch norm", "all"])
def test_ranks_train_as_one_in_steps(shared_path, monkeypatch, recipe):
    share_clusters(monkeypatch)
    settings = {"layers": 3, "hidden": 16, "dropout": 0.5, "epochs": 6, "eval_every": 6, "steps": "4",
                **RECIPES[recipe]}

    def alone():
        dataset = easy_graph()
        write(dataset, random_owner(dataset, COMM.size), COMM.size, shared_path / "shards")
        one = write(dataset, np.zeros(dataset.num_nodes, np.int32), 1, shared_path / "one")
        return losses(train(MPI.COMM_SELF, one, shared_path / "alone", **settings)[1])

    expected = on_rank_zero(COMM, alone)
    found = losses(train(COMM, shared_path / "shards", shared_path / "run", **settings)[1])
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_scores_and_best_weights_are_those_of_the_moving_average(shared_path):
    dataset = easy_graph()
    shards = write(dataset, np.zeros(dataset.num_nodes, np.int32), 1, shared_path / "shards")
    runs = {}
    for ema in (0.0, 0.9):
        _, metrics, _ = train(MPI.COMM_SELF, shards, shared_path / str(ema), ema=ema, epochs=6, eval_every=1)
        runs[ema] = losses(metrics), read_checkpoint(shared_path / str(ema) / "checkpoint.h5")
    assert np.array_equal(runs[0.0][0], runs[0.9][0])      # training never reads the average
    checkpoint = runs[0.9][1]
    assert checkpoint.average.num_steps == 6 and checkpoint.progress.best_epoch == 6
    for name, weights in checkpoint.average.weights.items():
        assert np.array_equal(checkpoint.best_model[name].numpy(), weights.numpy())
        assert np.array_equal(checkpoint.model[name].numpy(), runs[0.0][1].model[name].numpy())


@pytest.mark.parametrize("settings, complaint", [
    ({"input_dropout": -0.5}, "input_dropout must be -1 or a probability, found -0.5"),
    ({"input_dropout": 0.1, "model": "mine:Net"}, "input_dropout = 0.1 has no effect on model mine:Net, only on gcn, "),
    ({"norm": "batch", "model": "sgc"}, "norm batch can't be used with model sgc: it has no hidden layers"),
    ({"norm": "batch", "model": "mine:Net"}, "norm batch has no effect on model mine:Net, only on built-in ones"),
    ({"norm": "batch", "quantize": "uniform"}, "norm batch can't be used with quantize uniform: integers have no ba"),
    ({"norm": "batch", "store_activations": 4}, "norm batch can't be used with store_activations 4: its rows are kept"),
    ({"norm": "batch", "pre_aggregation": "on"}, "norm batch can't be used with pre_aggregation on: statistics are"),
    ({"residual": True, "layers": 2}, "residual has no effect on 2 layers, only on 3 or more; leave it out, or "),
    ({"residual": True, "model": "appnp"}, "residual = True has no effect on model appnp, only on gcn, sage, sage-max"),
    ({"residual": True, "quantize": "uniform"}, "residual can't be used with quantize uniform: integers have no resid"),
    ({"optimizer": "adamw"}, "optimizer adamw is adam without weight_decay; set --weight-decay too, such as 0.01"),
    ({"ema": 0.9, "average": 0.5, "steps": "4"}, "average 0.5 has no effect with ema; leave one out"),
])
def test_settings_without_effect_are_refused(settings, complaint):
    with pytest.raises(ConfigError) as refused:
        TrainConfig.of(**settings)
    assert str(refused.value).startswith(complaint)
