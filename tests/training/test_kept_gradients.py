"""float16 with methods that keep gradients: no kept gradient carries a loss scale, and none is infinite."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from covering import long_but
from made_steps import share_clusters
from mpi4py import MPI
from training_setup import SMALL, easy_graph, losses, train, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.exchange.bits import EpochPlan, UniformBits
from hpcgnn.exchange.halo import Unscaled
from hpcgnn.training.learner import Learner
from hpcgnn.training.session import Session
from hpcgnn.training.trainer import train_epoch

COMM = MPI.COMM_WORLD
LATE = {"most_motion": 9.0, "descent_window": 1, "asynchrony": "always"}
KEEPING = {
    "pipegcn": {"method": "pipegcn"}, "smoothed": {"method": "pipegcn", "smoothing": 0.5},
    "sancus": {"method": "sancus", "skip_change": 3.0, "staleness": 2},
    # Measured links would decide their widths otherwise, another time in each training.
    "sylvie": {"method": "sylvie", **LATE, "deterministic": True},
    "sylvie-paper": {"method": "sylvie-paper", **LATE, "deterministic": True},
    "joint": {"method": "joint", **LATE, "period": 2, "group_size": 20, "deterministic": True},
    "predicted": {"predict": "previous"},
    "predicted late": {"method": "pipegcn", "predict": "previous"},
    "shared": {"method": "pipegcn", "nodes_aware": "on", "ranks_per_node": 2},
    "summed": {"method": "pipegcn", "pre_aggregation": "on"},
}
WHOLE_EPOCHS = ("shared", "summed")
CASES = [(name, steps) for name in KEEPING for steps in ("1", "4") if steps == "1" or name not in WHOLE_EPOCHS]
# Each method once, in steps and without in turn.
SHORT = [CASES.index((name, "4" if place % 2 and name not in WHOLE_EPOCHS else "1"))
         for place, name in enumerate(KEEPING)]
SCALES = [2.0 ** power for power in (12, 6, 15, 10)]     # of one step after another
ROUNDED = ("sylvie", "sylvie-paper", "joint")      # few bits, which round other values elsewhere
PLANNED = ("pipegcn", "smoothed", "sancus", "predicted late")
OVERFLOWS = 2      # epoch


@pytest.fixture
def shards(shared_path, monkeypatch):
    share_clusters(monkeypatch)
    return write_once(COMM, easy_graph(seed=2), shared_path / "shards")


def note_steps(monkeypatch, scales=None):
    """Return a list to which each step adds its gradients, and whether it left the weights as they were.

    `scales` are the loss scales of float16, in turn, whatever the steps were.
    """
    found, step = [], Learner.step

    def noted(self):
        before = torch.nn.utils.parameters_to_vector(self.model.parameters()).clone()
        check = step(self)
        after = torch.nn.utils.parameters_to_vector(self.model.parameters())
        found.append((self.gradients.flat.clone(), torch.equal(before, after)))
        if self.loss_scale.is_dynamic and scales:
            self.loss_scale.value = scales[len(found) % len(scales)]
        return check

    monkeypatch.setattr(Learner, "step", noted)
    return found


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name, steps", long_but(SHORT, CASES))
def test_gradients_follow_those_of_float32_while_the_loss_scale_changes(shards, shared_path, monkeypatch, name, steps):
    settings = {"model": "sage", "layers": 2, "epochs": 4, "eval_every": 4, "lr": 0.003, "norm": "none", "steps": steps,
                "sum_bits": 32, **KEEPING[name]}
    noted, found = note_steps(monkeypatch, SCALES), {}
    for precision in ("fp32", "fp16"):
        noted.clear()
        _, metrics, _ = train(COMM, shards, shared_path / precision, precision=precision, **settings)
        found[precision] = losses(metrics), [gradients for gradients, _ in noted]
    np.testing.assert_allclose(found["fp16"][0], found["fp32"][0], rtol=0.005)
    off = [float((narrow - wide).norm() / wide.norm())
           for narrow, wide in zip(found["fp16"][1], found["fp32"][1], strict=True)]
    # A value near 0 may pass ReLU on one side only, in some steps.
    assert np.median(off) < (0.2 if name in ROUNDED else 0.01), off


def opened(shards, name, num_steps):
    session = Session.open(COMM, shards, TrainConfig.of(**{**SMALL, "layers": 3, "precision": "fp16", **KEEPING[name],
                                                        "steps": str(num_steps)}))
    return session, Learner.start(session, 0, None)


def losses_of_epochs(session, learner, num_epochs, num_steps):
    """Train epochs that read rows late where the method can; check after each that all that is kept is finite."""
    for epoch in range(num_epochs):
        is_late = epoch > 0 and session.config.method.name == "pipegcn"
        session.exchange.begin_epoch(EpochPlan(UniformBits(16), is_asynchronous=is_late, num_steps=num_steps))
        yield train_epoch(session, learner, 0, epoch, num_steps=num_steps).loss
        for state in (session.exchange.state(), {} if session.steps is None else session.steps.state()):
            assert all(np.isfinite(array).all() for array in arrays_of(state))
    session.forget()


def arrays_of(state):
    for value in state.values():
        if isinstance(value, dict):
            yield from arrays_of(value)
        elif isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating):
            yield value


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("num_steps", [1, 4])
@pytest.mark.parametrize("name", PLANNED)
def test_all_ranks_leave_out_the_step_in_which_one_sends_infinite_gradients(shards, monkeypatch, name, num_steps):
    session, learner = opened(shards, name, num_steps)
    first, noted, start, epochs = learner.loss_scale.value, note_steps(monkeypatch), Unscaled.start_take_home, []

    def overflowing(self, gradient, site):
        if site.epoch == OVERFLOWS and OVERFLOWS not in epochs and COMM.rank == 0:
            gradient = gradient.clone()
            gradient[:1], gradient[-1:] = float("inf"), float("nan")
        epochs.append(site.epoch)
        return start(self, gradient, site)

    monkeypatch.setattr(Unscaled, "start_take_home", overflowing)
    found = list(losses_of_epochs(session, learner, 4, num_steps))
    stood = [stands for _, stands in noted]
    assert stood == [number == OVERFLOWS * num_steps for number in range(4 * num_steps)]
    assert learner.loss_scale.value == first / 2 and np.isfinite(found).all()


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("num_steps", [1, 4])
@pytest.mark.parametrize("name", PLANNED)
def test_a_loss_scale_that_is_too_large_falls_and_leaves_nothing_infinite(shards, monkeypatch, name, num_steps):
    session, learner = opened(shards, name, num_steps)
    learner.loss_scale.value, noted = 2.0 ** 26, note_steps(monkeypatch)
    found = list(losses_of_epochs(session, learner, 16, num_steps))
    stood = [stands for _, stands in noted]
    assert stood[0] and not all(stood) and np.isfinite(found).all()
    assert found[-1] < found[0] and len(set(COMM.allgather(learner.loss_scale.value))) == 1
