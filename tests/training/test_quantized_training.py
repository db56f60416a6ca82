"""Training as integers: the same on any number of ranks, within its target, and resumed bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import long_but
from mpi4py import MPI
from training_setup import (
    SMALL,
    assert_same_bits,
    easy_graph,
    losses,
    on_rank_zero,
    random_owner,
    train,
    train_as_one,
    without_seconds,
    write,
    write_once,
)

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError, ConfigError
from hpcgnn.training.checkpoint import Progress, read_checkpoint, write_checkpoint
from hpcgnn.training.evaluate import Evaluation, QuantizedEvaluation, evaluation_from
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import TrainingRun

SCHEMES = ("degree-aware", "layer-aware", "degree-steps", "uniform", "degree-quant")
# At eight bits a code that rounding tips over changes a loss by less than the tolerance.
FINE = {"quantize_bits": 8, "lr": 0.005}


def settings_of_scheme(scheme, gradient="local"):
    learned = {} if scheme == "degree-quant" else {"quantize_lr": 0.01, "quantize_gradient": gradient}
    target = {"target_kb": 4.0} if scheme in ("degree-aware", "layer-aware") else {}
    return {"quantize": scheme, **FINE, **learned, **target}


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("scheme, gradient", [
    ("degree-aware", "straight-through"), ("degree-aware", "local"), ("layer-aware", "local"),
    ("degree-steps", "local"), ("uniform", "local"), ("degree-quant", "local")])
@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_losses_equal_those_of_one_rank_with_dropout(shared_path, model, scheme, gradient):
    settings = {"model": model, "dropout": 0.5, "epochs": 4, "eval_every": 4, **settings_of_scheme(scheme, gradient)}
    _, metrics, _, expected = train_as_one(MPI.COMM_WORLD, easy_graph(), shared_path, **settings)
    # Sums over ranks differ in their last bits; sooner or later a code or a width rounds the other way, and with it the
    # sign of an error, which Adam makes a whole step of where steps fit best.
    np.testing.assert_allclose(losses(metrics)[:2], losses(expected)[:2], rtol=1e-5)
    np.testing.assert_allclose(losses(metrics), losses(expected), rtol=5e-4)
    assert metrics[0]["feature_kb"] == expected[0]["feature_kb"]


@pytest.mark.parallel([2])
@pytest.mark.parametrize("settings", long_but((1, 3), [
    {"method": "pipegcn"}, {"method": "sylvie"}, {"method": "bns", "share": 0.5}, {"predict": "previous"}]))
def test_rows_travel_by_any_method(shared_path, shards, settings):
    comm = MPI.COMM_WORLD
    summary, metrics, _ = train(comm, shards, shared_path / "run", epochs=10, lr=0.1, hidden=16, target_kb=3.0,
                                quantize="degree-aware", **settings)
    assert losses(metrics)[-1] < 0.7 * losses(metrics)[0]
    assert summary["test_score"] > 0.6


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("model", ["gcn", "gin"])
def test_widths_meet_the_target_and_every_line_says_their_size(shared_path, shards, model):
    comm = MPI.COMM_WORLD
    summary, metrics, run = train(comm, shards, shared_path / "run", model=model, quantize="degree-aware", epochs=20,
                                  eval_every=5, quantize_lr=0.1, target_kb=1.5)
    assert summary["meets_target"] and summary["feature_kb"] <= 1.01 * 1.5
    assert all(record["feature_kb"] > 0 and 1 <= record["mean_feature_bits"] <= 8 for record in metrics)
    (result,) = summary["results"]
    best = next(record for record in metrics if record["epoch"] == result["best_epoch"])
    assert result["feature_kb"] == best["feature_kb"]
    stored = on_rank_zero(comm, lambda: json.loads((shared_path / "run/summary.json").read_text()))
    assert stored["stored_kb"] == pytest.approx(
        stored["feature_kb"] + (stored["weight_bits"] + stored["scale_bits"]) / 8192)
    assert len(stored["feature_bits"]) == len(run.learner.model.row_quantizers)
    for of_degree, mean in zip(stored["widths_by_degree"], stored["feature_bits"], strict=True):
        assert np.average(of_degree["bit_width"], weights=of_degree["num_nodes"]) == pytest.approx(mean)
    (first, *_), best = run.learner.model.row_quantizers, run.learner.best_model
    with torch.no_grad():
        first.width.fill_(7.5)
    copied = run.learner.with_best_weights()
    assert all(torch.equal(tensor, best[name]) for name, tensor in copied.state_dict().items())
    assert (first.width == 7.5).all() and not (copied.row_quantizers[0].width == 7.5).any()
    assert stored["float_kb"] > 4 * stored["stored_kb"]


@pytest.mark.parallel([1, 2, 3])
def test_the_penalty_counts_once_whatever_the_number_of_ranks(shared_path, shards, monkeypatch):
    """With a large weight the loss and its gradient are nearly all penalty."""
    comm = MPI.COMM_WORLD
    config = TrainConfig.of(**{**SMALL, "quantize": "degree-aware", "epochs": 1, "lr": 0.0, "quantize_lr": 0.0,
                            "target_kb": 1.5, "size_weight": 1e4})
    run = TrainingRun(Session.open(comm, shards, config), RunFolder(shared_path / "run"))
    model = run.learner.model
    monkeypatch.setattr(run.learner.gradients, "release", lambda: None)      # a run's end lets go of gradients
    with torch.no_grad():
        for quantizer in model.row_quantizers:
            quantizer.width.fill_(8.0)
    if comm.rank == 0:
        run.folder.create(overwrite=False)
    run.execute()
    excess = 240 * (12 + 8) * 8 / 8192 / 1.5 - 1
    loss = comm.bcast(run.folder.read_metrics()[0]["loss"] if comm.rank == 0 else None)
    assert loss == pytest.approx(1e4 * excess ** 2, rel=1e-3)
    for quantizer in model.row_quantizers:
        slope = 2e4 * excess / 1.5 * quantizer.dim / 8192
        np.testing.assert_allclose(quantizer.width.grad.numpy(), slope * quantizer.counts.numpy(), rtol=1e-2,
                                   atol=1e-2 * slope)


def test_a_target_that_no_width_meets_is_refused(tmp_path):
    shards = write_once(MPI.COMM_SELF, easy_graph(), tmp_path / "shards")
    with pytest.raises(CollectiveError, match=r"^target_kb is 0.9, and rows of the smallest widths, .* take 0.9375 KB; "
                                              "raise target_kb$"):
        train(MPI.COMM_SELF, shards, tmp_path / "run", quantize="degree-aware", target_kb=0.9)


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_resumed_run_ends_as_the_whole_one_bit_for_bit(shared_path, shards, scheme):
    comm = MPI.COMM_WORLD
    settings = {"quantize": scheme, "epochs": 4, "checkpoint_every": 2}
    _, expected, _ = train(comm, shards, shared_path / "whole", **settings)
    train(comm, shards, shared_path / "half", **{**settings, "epochs": 2})
    resumed = on_rank_zero(comm, lambda: read_checkpoint(shared_path / "half/checkpoint.h5"))
    resumed = comm.bcast(resumed)
    _, metrics, _ = train(comm, shards, shared_path / "half", resumed=resumed, **settings)
    assert without_seconds(metrics) == without_seconds(expected)
    on_rank_zero(comm, lambda: assert_same_bits(*(shared_path / name / "checkpoint.h5" for name in ("half", "whole"))))


@pytest.mark.parallel([1])
def test_a_stopped_training_of_integers_is_kept_whole(shared_path, shards):
    comm = MPI.COMM_WORLD
    train(comm, shards, shared_path / "run", quantize="degree-aware", epochs=2)
    read = read_checkpoint(shared_path / "run/checkpoint.h5")
    assert isinstance(read.progress.best, QuantizedEvaluation)
    write_checkpoint(shared_path / "again.h5", read)
    assert_same_bits(shared_path / "again.h5", shared_path / "run/checkpoint.h5")


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_of_zeros_and_ones_are_stored_in_one_bit(shared_path, scheme):
    comm = MPI.COMM_WORLD
    dataset = easy_graph()
    binary = replace(dataset, features=(dataset.features > 0.5).astype(np.float32)).check()
    shards = write_once(comm, binary, shared_path / "shards")
    _, _, run = train(comm, shards, shared_path / "run", quantize=scheme, epochs=2)
    rows = run.learner.model.export("easy").convolutions[0].rows
    if scheme == "degree-aware":
        assert set(rows.bit_width.tolist()) == {1} and set(rows.step.tolist()) == {1.0}
    if scheme == "layer-aware":
        assert rows.bit_width.tolist() == [1] and rows.step.tolist() == [1.0]
    if scheme == "degree-steps":
        assert set(rows.bit_width.tolist()) == {4} and set(rows.step.tolist()) == {1.0} and len(rows.step) > 1
    if scheme == "uniform":
        assert rows.bit_width.tolist() == [4] and rows.step.tolist() == [1.0]
    assert not rows.is_signed


@pytest.mark.parallel([1, 2])
def test_a_trained_model_exports_what_it_scored_with(shared_path, shards):
    comm = MPI.COMM_WORLD
    _, _, run = train(comm, shards, shared_path / "run", quantize="degree-aware", epochs=2)
    session = run.session
    model = session.new_model(seed=99)
    model.load_state_dict(run.learner.best_model)
    run.learner.model.load_state_dict(run.learner.best_model)
    pairs = zip(model.export("easy").convolutions, run.learner.model.export("easy").convolutions, strict=True)
    for mine, other in pairs:
        assert mine.rows.step.tobytes() == other.rows.step.tobytes()
        assert mine.rows.bit_width.tobytes() == other.rows.bit_width.tobytes()
        assert mine.neighbor.codes.tobytes() == other.neighbor.codes.tobytes()


def sized(val_score, feature_kb, meets_target, val_loss=1.0):
    return QuantizedEvaluation(0.9, val_score, 0.5, val_loss, feature_kb, 2.0, [2.0], meets_target)


def test_an_evaluation_that_meets_the_target_is_better_than_any_that_does_not():
    assert sized(0.1, 10.0, True).is_better_than(sized(0.9, 20.0, False))
    assert not sized(0.9, 20.0, False).is_better_than(sized(0.1, 10.0, True))
    assert sized(0.1, 19.0, False).is_better_than(sized(0.9, 20.0, False))
    assert sized(0.9, 20.0, False).is_better_than(sized(0.1, 20.0, False))
    assert sized(0.6, 10.0, True).is_better_than(sized(0.5, 5.0, True))
    assert not sized(float("nan"), 20.0, True).is_better_than(None)
    assert not sized(float("nan"), 20.0, True).is_better_than(sized(0.1, 30.0, False))
    assert sized(float("nan"), 20.0, False).is_better_than(None, has_validation=False)
    assert not sized(float("nan"), 20.0, False).is_better_than(sized(float("nan"), 10.0, True), has_validation=False)


def test_evaluations_come_back_from_a_checkpoint_as_they_were():
    progress = Progress(epoch=3)
    progress.note(sized(0.5, 10.0, True))
    assert evaluation_from({**vars(progress.best)}) == progress.best
    plain = Evaluation(0.9, 0.8, 0.7, 0.6)
    assert evaluation_from({**vars(plain)}) == plain


@pytest.mark.parametrize("settings, complaint", [
    ({"model": "appnp"}, "quantize uniform can't be used with model appnp: integer convolutions exist for gcn, sage, "
                         "gin, gat only; choose one of them"),
    ({"model": "gcn", "precision": "bf16"}, "quantize uniform can't be used with precision bf16: "),
    ({"model": "gcn", "rematerialize": True}, "quantize uniform can't be used with rematerialize: "),
    ({"model": "gcn", "target_kb": 5.0}, "target_kb = 5.0 has no effect on quantize uniform, only on degree-aware, "
                                         "layer-aware; leave it out or change --quantize"),
    ({"model": "gcn", "quantize_bits": 9}, "quantize_bits must be at most 8, found 9"),
    ({"model": "gcn", "quantize": "none", "quantize_bits": 3}, "quantize_bits = 3 has no effect on quantize none"),
    ({"model": "gcn", "quantize": "degree-quant", "protect": "0.3,0.1"},
     "protect must be two probabilities LOW,HIGH with 0 <= LOW <= HIGH <= 1, found '0.3,0.1'"),
    ({"model": "gcn", "quantize": "degree-quant", "protect": "some"}, "protect must be two probabilities LOW,HIGH"),
])
def test_settings_that_can_not_work_together_are_refused(settings, complaint):
    with pytest.raises(ConfigError) as refused:
        TrainConfig.of(**{"quantize": "uniform", **settings})
    assert str(refused.value).startswith(complaint)


@pytest.mark.parallel([1, 2])
def test_features_that_are_not_finite_are_refused_by_all_ranks_in_one_sentence(shared_path):
    comm = MPI.COMM_WORLD
    dataset = easy_graph()
    shards = write_once(comm, dataset, shared_path / "shards")
    session = Session.open(comm, shards, TrainConfig.of(model="gcn", layers=2, hidden=8, quantize="uniform"))
    if comm.rank == 0:
        session.graph.x[3, 1] = float("nan")
    with pytest.raises(CollectiveError) as refused:
        session.new_model(0)
    assert str(refused.value) == "input rows to quantize hold NaN or infinity; expected finite features"


@pytest.mark.parallel([2])
def test_ranks_hold_the_same_scales_bit_for_bit(shared_path):
    comm = MPI.COMM_WORLD
    dataset = easy_graph()
    shards = on_rank_zero(comm, lambda: write(dataset, random_owner(dataset, comm.size), comm.size,
                                              shared_path / "shards"))
    for scheme in SCHEMES:
        _, _, run = train(comm, shards, shared_path / scheme, quantize=scheme, model="sage", epochs=2)
        state = b"".join(tensor.numpy().tobytes() for tensor in run.learner.model.state_dict().values())
        assert len(set(comm.allgather(state))) == 1
        assert all(torch.isfinite(tensor).all() for tensor in run.learner.model.state_dict().values())
