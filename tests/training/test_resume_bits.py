"""A resumed run is the run that was never stopped, bit for bit, whatever the method: what docs/resume.md promises."""

from __future__ import annotations

import shutil

import pytest
from covering import long_but
from mpi4py import MPI
from training_setup import (
    assert_same_bits,
    easy_graph,
    on_rank_zero,
    shards_of,
    stopping_folder,
    train,
    without_seconds,
)

from hpcgnn.config import TrainConfig
from hpcgnn.errors import ConfigError, Interrupted
from hpcgnn.methods import METHODS
from hpcgnn.steps import clusters
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.run_folder import RunFolder

COMM = MPI.COMM_WORLD
NUM_EPOCHS = 5
# Windows and periods so short that asynchronous epochs and new widths lie on both sides of the stop.
ADAPTIVE = {"descent_window": 1, "descent_smoothing": 0.5, "most_motion": 9.0}
METHOD_SETTINGS = {
    "uniform": {"bits": 2}, "bns": {"share": 0.4}, "sancus": {"skip_change": 3.0, "staleness": 3}, "sylvie": ADAPTIVE,
    "adaqp": {"period": 2, "group_size": 20, "solver": "greedy"}, "joint": {**ADAPTIVE, "period": 2, "group_size": 20},
}
VARIANTS = {
    "plain": ({}, METHODS),
    "predict": ({"predict": "previous"}, ["vanilla", "sylvie", "adaqp"]),
    "pick": ({"predict": "auto"}, ["uniform", "joint"]),
    "share of differences": ({"predict": "previous", "send_share": 0.3}, ["uniform", "sylvie", "pipegcn"]),
    "share of differences in steps": ({"predict": "previous", "send_share": 0.3, "steps": "2"}, ["pipegcn"]),
    "smoothing": ({"smoothing": 0.6}, ["pipegcn"]),
    "integers": ({"quantize": "uniform"}, ["sylvie", "sancus"]),
    "degree-aware": ({"quantize": "degree-aware"}, ["joint"]),
    "degree-quant": ({"quantize": "degree-quant"}, ["pipegcn"]),
    "fp16": ({"precision": "fp16"}, ["adaqp", "pipegcn", "sancus", "joint"]),
    "fp16, smoothing": ({"precision": "fp16", "smoothing": 0.6}, ["pipegcn"]),
    "fp16 in steps": ({"precision": "fp16", "steps": "2"}, ["pipegcn", "sancus"]),
    "fp16, predict": ({"precision": "fp16", "predict": "previous"}, ["sylvie"]),
    "bf16": ({"precision": "bf16"}, ["pipegcn"]),
    "alltoallv": ({"exchange": "alltoallv"}, ["sylvie"]),
    "rematerialize": ({"rematerialize": True}, ["adaqp"]),
    "all rows": ({"epoch_rows": "all"}, ["joint"]),
    "steps": ({"steps": "2"}, ["joint"]),
    "fewer steps": ({"steps": "auto", "precision": "bf16"}, ["random"]),
    "recipe": ({"norm": "batch", "input_dropout": 0.0, "residual": True, "layers": 3, "optimizer": "adamw",
                "weight_decay": 0.01, "ema": 0.9}, ["vanilla", "pipegcn"]),
    "thinned": ({"model": "gcn", "edge_dropout": 0.3}, ["uniform", "pipegcn"]),
    "labels as inputs": ({"label_inputs": 0.5, "input_dropout": 0.0}, ["uniform"]),
    "recipe in steps": ({"norm": "batch", "input_dropout": 0.2, "residual": True, "layers": 3, "optimizer": "adamw",
                         "weight_decay": 0.01, "ema": 0.9, "steps": "2"}, ["uniform"]),
    "rotated": ({"code": "rotated"}, ["sylvie", "adaqp"]),
    "shared rows": ({"nodes_aware": "on", "ranks_per_node": 2}, ["adaqp"]),
    "sums of rows": ({"pre_aggregation": "on"}, ["adaqp"]),
    "gradients in codes": ({"sum_bits": 2}, ["uniform"]),
    "rotated differences": ({"code": "rotated", "predict": "previous"}, ["sylvie"]),
}
WITH_STATE = [("pipegcn", "plain"), ("pipegcn", "predict"), ("pipegcn", "smoothing"), ("uniform", "predict"),
              ("sancus", "plain"), ("sylvie", "predict"), ("adaqp", "plain"), ("joint", "plain"),
              ("sylvie", "rotated"), ("sancus", "rotated"), ("uniform", "steps"),
              ("pipegcn", "shared rows"), ("joint", "shared rows"), ("pipegcn", "sums of rows")]


def settings_of(method, variant, **more):
    return {"model": "sage", "hidden": 6, "dropout": 0.5, "epochs": NUM_EPOCHS, "eval_every": 2, "checkpoint_every": 2,
            "method": method, **METHOD_SETTINGS.get(method, {}), **VARIANTS[variant][0], **more}


def is_legal(method, variant):
    try:
        TrainConfig.of(**settings_of(method, variant))
    except ConfigError:
        return False
    return True


CASES = [(method, variant) for variant, (_, methods) in VARIANTS.items() for method in methods
         if is_legal(method, variant)]
# Each variant with the first of its methods, and those methods as they are that no such case has.
FIRST = [(methods[0], variant) for variant, (_, methods) in VARIANTS.items() if variant != "plain"]
# Settings that keep nothing themselves, or that another variant has, too.
BESIDE = ("predict", "fp16", "fp16, smoothing", "fp16, predict", "bf16", "alltoallv", "rematerialize", "all rows",
          "recipe", "rotated", "shared rows", "thinned", "labels as inputs")
SHORT = [place for place, (method, variant) in enumerate(CASES) if variant not in BESIDE and (
    (method, variant) in FIRST or (variant == "plain" and method not in dict(FIRST)))]


@pytest.fixture(autouse=True)
def small_clusters(monkeypatch):
    """Steps have clusters to be dealt also on 30 nodes a rank, and `auto` begins with more than one."""
    monkeypatch.setattr(clusters, "ROWS_A_CLUSTER", 5)
    monkeypatch.setattr(clusters, "ROWS_A_STEP", 20)


shards = shards_of(lambda: easy_graph(spec="synthetic:nodes=90,mean_degree=6,classes=3,features=6,signal=2"))


def copying_folder(copy, epoch):
    """A run folder that is copied when an epoch is recorded, as a kill at that moment would leave it."""

    class CopiedFolder(RunFolder):
        def append_metrics(self, record):
            super().append_metrics(record)
            if record["epoch"] == epoch:
                shutil.copytree(self.path, copy)

    return CopiedFolder


def go_on(shards, out, **settings):
    """Collective: resume the run in a folder; the epoch from which, and its metrics."""
    resumed = on_rank_zero(COMM, lambda: read_checkpoint(out / "checkpoint.h5"))
    epoch = resumed.progress.epoch
    return epoch, train(COMM, shards, out, resumed=resumed, **settings)[1]


def comparable(metrics):
    """Metrics but for times, of which the measured rate of descent is one."""
    return [{key: value for key, value in record.items() if key != "ldr"} for record in without_seconds(metrics)]


def assert_same_run(found, metrics, expected, expected_metrics):
    """Collective: metrics, weights, best weights, moments and progress agree."""
    assert comparable(metrics) == comparable(expected_metrics)
    on_rank_zero(COMM, lambda: assert_same_bits(found / "checkpoint.h5", expected / "checkpoint.h5"))


@pytest.mark.parallel([2])
@pytest.mark.parametrize("method, variant", long_but(SHORT, CASES))
def test_a_killed_run_goes_on_from_its_checkpoint_as_if_nothing_had_been(shared_path, shards, method, variant):
    """Widths that follow measured links among them: what was measured is kept."""
    whole, killed = shared_path / "whole", shared_path / "killed"
    settings = settings_of(method, variant)
    _, expected, _ = train(COMM, shards, whole, copying_folder(killed, 3), **settings)
    epoch, metrics = go_on(shards, killed, **settings)
    assert epoch == 2
    assert_same_run(killed, metrics, whole, expected)
    if method == "pipegcn":
        assert [record["mode"] for record in metrics] == ["sync"] + (NUM_EPOCHS - 1) * ["async"]
    if method in ("sylvie", "joint"):
        assert "async" in {record["mode"] for record in metrics[epoch:]}


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3, 1])
@pytest.mark.parametrize("method, variant", long_but((0, 2, 3, 4, 6, 7, 8, 10, 11, 13), WITH_STATE))
@pytest.mark.parametrize("stop", [1, 3])
def test_a_stopped_run_ends_as_one_that_was_never_stopped_or_saved(shared_path, shards, method, variant, stop):
    whole, stopped = shared_path / "whole", shared_path / "stopped"
    settings = settings_of(method, variant, **({"deterministic": True} if method in ("adaqp", "joint") else {}))
    _, expected, _ = train(COMM, shards, whole, **{**settings, "checkpoint_every": 0})
    with pytest.raises(Interrupted):
        train(COMM, shards, stopped, stopping_folder(stop), **settings)
    epoch, metrics = go_on(shards, stopped, **settings)
    assert epoch == (stop if variant == "steps" else stop + 1)      # after a step of the next epoch, or after all
    assert_same_run(stopped, metrics, whole, expected)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("method, variant, more", [("pipegcn", "smoothing", {}),
                                                   ("joint", "predict", {"deterministic": True})])
def test_a_run_over_seeds_goes_on_in_the_seed_where_it_stopped(shared_path, shards, method, variant, more):
    whole, stopped = shared_path / "whole", shared_path / "stopped"
    settings = settings_of(method, variant, epochs=3, repeat=2, **more)
    _, expected, _ = train(COMM, shards, whole, **settings)
    with pytest.raises(Interrupted):
        train(COMM, shards, stopped, stopping_folder(1, seed=1), **settings)
    _, metrics = go_on(shards, stopped, **settings)
    assert_same_run(stopped, metrics, whole, expected)


@pytest.mark.parallel([2])
def test_a_run_that_stops_early_stops_at_the_same_epoch(shared_path, shards):
    whole, killed = shared_path / "whole", shared_path / "killed"
    settings = settings_of("pipegcn", "predict", epochs=40, eval_every=1, early_stop=2, lr=0.1)
    _, expected, _ = train(COMM, shards, whole, copying_folder(killed, 3), **settings)
    assert 3 < len(expected) < 40
    _, metrics = go_on(shards, killed, **settings)
    assert_same_run(killed, metrics, whole, expected)


@pytest.mark.parallel([2])
def test_a_complete_run_that_is_given_more_epochs_goes_on(shared_path, shards):
    whole, run = shared_path / "whole", shared_path / "run"
    settings = settings_of("pipegcn", "predict")
    _, expected, _ = train(COMM, shards, whole, **settings)
    train(COMM, shards, run, **{**settings, "epochs": 2})
    epoch, metrics = go_on(shards, run, **settings)
    assert epoch == 2
    assert_same_run(run, metrics, whole, expected)
