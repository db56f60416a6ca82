"""Averaged weights: what they are, that training doesn't read them, and that scores and saved weights do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_steps import share_clusters
from mpi4py import MPI
from torch import nn
from training_setup import easy_graph, losses, on_rank_zero, train, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError, ConfigError
from hpcgnn.training.average import Averaged, WeightAverage
from hpcgnn.training.checkpoint import read_checkpoint

COMM = MPI.COMM_WORLD
SETTINGS = {"model": "sage", "layers": 2, "dropout": 0.5, "epochs": 4, "lr": 0.01, "eval_every": 1, "norm": "none"}


def moved(model, average, sequence, num_steps):
    for values in sequence:
        with torch.no_grad():
            model.weight.copy_(torch.tensor(values).view_as(model.weight))
        average.note(num_steps)


@pytest.mark.parametrize("share, num_steps", [(0.25, 40), (0.5, 6), (2.0, 4), (0.25, 4)])
def test_the_average_is_the_mean_of_all_steps_and_then_exponential_over_a_tenth_of_all(share, num_steps):
    model, rng = nn.Linear(3, 2, bias=False), np.random.default_rng(0)
    average, sequence = WeightAverage(model, share), rng.normal(size=(150, 6)).astype(np.float32)
    moved(model, average, sequence, num_steps)
    span, expected = share * num_steps, np.zeros(6)
    for count, weights in enumerate(sequence, start=1):
        expected += (weights - expected) * max(1 / max(span, count / 10), 1 / count)
    np.testing.assert_allclose(average.state().weights["weight"].numpy().ravel(), expected, rtol=1e-5, atol=1e-6)
    first = int(span)
    start = WeightAverage(model, share)
    moved(model, start, sequence[:first], num_steps)
    np.testing.assert_allclose(start.state().weights["weight"].numpy().ravel(), sequence[:first].mean(0), rtol=1e-4,
                               atol=1e-6)


@pytest.mark.parametrize("num_steps", [1, 4])
def test_an_average_with_a_decay_is_torchs_over_all_epochs(num_steps):
    model, rng = nn.Linear(3, 2, bias=False), np.random.default_rng(0)
    average, sequence = WeightAverage(model, 0.25, 0.9), rng.normal(size=(30, 6)).astype(np.float32)
    expected = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for values in sequence:
        moved(model, average, [values], num_steps)
        expected.update_parameters(model)
    torch.testing.assert_close(average.state().weights["weight"], expected.module.weight.detach(), rtol=1e-6, atol=1e-7)
    with average.in_model():
        torch.testing.assert_close(model.weight, expected.module.weight, rtol=1e-6, atol=1e-7)


def test_a_model_has_its_own_weights_again_to_the_last_bit():
    model = nn.Linear(3, 2)
    average = WeightAverage(model, 0.5)
    moved(model, average, np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32), 8)
    own = model.weight.detach().clone()
    with pytest.raises(RuntimeError, match="while it is scored"), average.in_model():
        assert torch.equal(model.weight, average.state().weights["weight"]) and not torch.equal(model.weight, own)
        raise RuntimeError("while it is scored")
    assert torch.equal(model.weight, own)


def test_what_the_model_takes_is_the_average_and_none_is_left():
    model = nn.Linear(3, 2)
    average = WeightAverage(model, 0.5)
    moved(model, average, np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32), 8)
    expected = average.state().weights["weight"].clone()
    average.take()
    assert torch.equal(model.weight, expected) and average.state() is None
    average.take()
    assert torch.equal(model.weight, expected)


@pytest.mark.parametrize("share, num_steps", [(0.25, 1), (2.0, 1), (0.0, 64)])
def test_with_one_step_an_epoch_or_no_share_the_weights_are_their_own_average(share, num_steps):
    model = nn.Linear(3, 2)
    average = WeightAverage(model, share)
    moved(model, average, [[1.0] * 6, [2.0] * 6], 64)
    moved(model, average, [[3.0] * 6], num_steps)
    with average.in_model():
        assert (model.weight == 3).all()
    assert average.state() is None
    moved(model, average, [[5.0] * 6], 64)      # begins anew
    assert average.state() is None or (average.state().weights["weight"] == 5).all()


def test_an_average_goes_on_where_it_was_and_one_of_other_weights_is_refused():
    model = nn.Linear(3, 2, bias=False)
    average, other = WeightAverage(model, 0.5), WeightAverage(model, 0.5)
    moved(model, average, [[1.0] * 6, [2.0] * 6], 8)
    other.restore(Averaged(2, {"weight": average.state().weights["weight"].clone()}))
    for one in (average, other):
        moved(model, one, [[6.0] * 6], 8)
    assert torch.equal(other.state().weights["weight"], average.state().weights["weight"])
    with pytest.raises(CollectiveError, match="an average of other weights"):
        WeightAverage(nn.Linear(3, 2), 0.5).restore(average.state())


@pytest.mark.parallel([1, 2, 3])
def test_scores_and_saved_weights_are_of_the_average_and_training_never_reads_it(shared_path, monkeypatch):
    share_clusters(monkeypatch)
    shards = write_once(COMM, easy_graph(seed=3), shared_path / "shards")
    runs = {}
    for share in (0.0, 2.0):
        out = shared_path / f"run-{share}"
        _, metrics, _ = train(COMM, shards, out, steps="6", average=share, **SETTINGS)
        runs[share] = losses(metrics), [line["val_loss"] for line in metrics], read_checkpoint(out / "checkpoint.h5")
    assert np.array_equal(runs[0.0][0], runs[2.0][0]) and runs[0.0][1] != runs[2.0][1]

    def compare():
        raw, averaged = runs[0.0][2], runs[2.0][2]
        assert raw.average is None and averaged.average.num_steps == 24
        for name, weights in averaged.model.items():
            assert torch.equal(weights, raw.model[name])
        assert averaged.progress.best_epoch == averaged.progress.epoch      # so that the best weights are the last
        for name, weights in averaged.average.weights.items():
            assert torch.equal(weights, averaged.best_model[name])
            assert not torch.equal(weights, averaged.model[name])

    on_rank_zero(COMM, compare)


def test_one_step_an_epoch_refuses_a_share_and_auto_ends_on_the_weights_themselves(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"average 0\.5 has no effect on an epoch of one step"):
        TrainConfig.of(average=0.5)
    share_clusters(monkeypatch)
    monkeypatch.setattr("hpcgnn.steps.clusters.ROWS_A_STEP", 20)
    shards = write_once(MPI.COMM_SELF, easy_graph(seed=3), tmp_path / "shards")
    train(MPI.COMM_SELF, shards, tmp_path / "run", steps="auto", **SETTINGS)
    assert read_checkpoint(tmp_path / "run/checkpoint.h5").average is None
