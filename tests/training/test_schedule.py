"""Rates that settings ask for: each epoch's is known, and a stopped run goes on with those of the whole one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import SMALL, assert_same_bits, on_rank_zero, train, without_seconds

import hpcgnn
from hpcgnn.config import SCHEDULES, TrainConfig
from hpcgnn.errors import CollectiveError, ConfigError, Interrupted
from hpcgnn.training.checkpoint import read_checkpoint
from hpcgnn.training.schedule import choose_schedule, planned_share

COMM = MPI.COMM_WORLD
LR = 0.02


def expected_rates(schedule, warmup, epochs):
    """The rate of each epoch by its definition."""
    rates = [LR * (epoch + 1) / warmup for epoch in range(warmup)]
    for epoch in range(epochs - warmup):
        passed = epoch / (epochs - warmup)
        rates.append(LR * {"constant": 1, "linear": 1 - passed,
                           "cosine": 0.5 + 0.5 * math.cos(math.pi * passed)}[schedule])
    return rates


def rates(metrics):
    return [record["lr"] for record in metrics]


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("schedule, warmup", [("cosine", 0), ("linear", 0), ("cosine", 3), ("linear", 1),
                                              ("constant", 3)])
def test_rates_are_those_of_the_formula(shards, shared_path, schedule, warmup):
    _, metrics, _ = train(COMM, shards, shared_path / "run", lr=LR, schedule=schedule, warmup=warmup)
    np.testing.assert_allclose(rates(metrics), expected_rates(schedule, warmup, SMALL["epochs"]), rtol=1e-12)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_rates_are_those_of_torchs_schedules_in_sequence(schedule, warmup):
    of_torch, epochs = torch.optim.lr_scheduler, 15
    plain, planned = (torch.optim.SGD([torch.zeros(1)], lr=LR) for _ in range(2))
    fall = (of_torch.CosineAnnealingLR(plain, epochs - warmup) if schedule == "cosine" else
            of_torch.LinearLR(plain, 1.0, 0.0, epochs - warmup))
    rise = of_torch.LinearLR(plain, 1 / max(1, warmup), total_iters=max(1, warmup - 1))
    theirs = of_torch.SequentialLR(plain, [rise, fall], [warmup]) if warmup else fall
    ours = choose_schedule(None, TrainConfig.of(schedule=schedule, warmup=warmup, epochs=epochs, lr=LR))(planned)
    for _ in range(epochs + 1):
        np.testing.assert_allclose(planned.param_groups[0]["lr"], plain.param_groups[0]["lr"], atol=1e-12)
        for optimizer, moved in ((plain, theirs), (planned, ours)):
            optimizer.step()
            moved.step()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_is_never_negative_and_stays_after_the_last_epoch(schedule):
    shares = [planned_share(epoch, schedule, 2, 6) for epoch in range(12)]
    assert min(shares) >= 0 and max(shares) == 1 and len(set(shares[6:])) == 1
    assert shares[6] == pytest.approx(1 if schedule == "constant" else 0, abs=1e-15)


def test_a_constant_rate_is_no_schedule(shards, shared_path):
    assert choose_schedule(None, TrainConfig()) is None
    _, metrics, _ = train(COMM, shards, shared_path / "run", schedule="constant", warmup=0)
    assert "lr" not in metrics[0]
    assert read_checkpoint(shared_path / "run" / "checkpoint.h5").schedule is None


class Stop(hpcgnn.Callback):
    """Ends the process's run, as a signal would, after 2 epochs."""

    def on_epoch_end(self, run, record):
        if record["epoch"] == 2:
            import signal
            signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("asked", [{"schedule": "cosine", "warmup": 3},
                                   {"schedule": "linear", "optimizer": lambda it: torch.optim.SGD(it, lr=0.3)}])
def test_a_stopped_run_goes_on_bit_for_bit(shards, shared_path, asked):
    graph = hpcgnn.open(shards, COMM)
    asked = {**SMALL, "epochs": 6, **asked}
    model = asked.pop("model")
    whole = hpcgnn.fit(model, graph, out=shared_path / "whole", **asked)
    with pytest.raises(Interrupted):
        hpcgnn.fit(model, graph, out=shared_path / "stopped", callbacks=[Stop()], **asked)
    resumed = hpcgnn.fit(model, graph, out=shared_path / "stopped", resume=True, **asked)
    assert without_seconds(resumed.metrics) == without_seconds(whole.metrics)
    assert len(set(rates(whole.metrics))) == 6 or asked.get("warmup")
    on_rank_zero(COMM, lambda: assert_same_bits(shared_path / "stopped/checkpoint.h5",
                                                shared_path / "whole/checkpoint.h5"))


def test_a_run_that_goes_on_for_longer_follows_the_longer_curve(shards, shared_path):
    graph = hpcgnn.open(shards, COMM)
    hpcgnn.fit("gcn", graph, out=shared_path / "run", lr=LR, epochs=6, schedule="cosine", layers=2, hidden=8)
    longer = hpcgnn.fit("gcn", graph, out=shared_path / "run", epochs=10, resume=True)
    np.testing.assert_allclose(rates(longer.metrics)[6:], expected_rates("cosine", 0, 10)[6:], rtol=1e-12)


@pytest.mark.parametrize("asked, complaint", [
    ({"schedule": "step"}, "schedule must be one of constant, cosine, linear, found 'step'"),
    ({"warmup": -1}, "warmup must be at least 0, found -1"),
    ({"warmup": 1.5}, "warmup must be of type int, found 1.5"),
    ({"warmup": 20, "epochs": 20}, "warmup must be less than the 20 epochs, found 20; change one of them"),
])
def test_settings_that_can_not_be_are_refused(asked, complaint):
    with pytest.raises(ConfigError, match=complaint):
        TrainConfig.of(**asked)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("asked, complaint", [
    ({"schedule": "cosine", "lr": 0.0}, "a schedule needs a positive lr to begin with, found 0"),
    ({"schedule": lambda it: torch.optim.lr_scheduler.ConstantLR(it), "warmup": 2},
     "warmup = 2 has no effect where the program gives a schedule of its own; leave one out"),
])
def test_what_can_not_be_joined_is_refused_before_the_folder_is_made(shards, shared_path, asked, complaint):
    with pytest.raises(CollectiveError, match=complaint):
        hpcgnn.fit("gcn", hpcgnn.open(shards, COMM), out=shared_path / "run", **asked)
    COMM.Barrier()      # rank 0 removes what its lock has made
    assert not (shared_path / "run").exists()


def test_a_programs_schedule_and_that_of_a_setting_are_refused():
    with pytest.raises(hpcgnn.HpcgnnError, match="schedule = linear has no effect where the program gives a schedule"):
        choose_schedule(torch.optim.lr_scheduler.ConstantLR, TrainConfig.of(schedule="linear"))


def test_a_run_with_a_rate_that_moves_does_not_go_on_with_one_that_stays(shards, shared_path):
    graph = hpcgnn.open(shards, COMM)
    hpcgnn.fit("gcn", graph, out=shared_path / "run", epochs=4, schedule="cosine", layers=2, hidden=8)
    with pytest.raises(CollectiveError, match="with a schedule of the learning rate and can't go on with none"):
        hpcgnn.fit("gcn", graph, out=shared_path / "run", epochs=6, schedule="constant", resume=True)
