"""Gradients longer than `clip_norm` are scaled to it, alike on all ranks, and nothing else changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from training_setup import losses, train

from hpcgnn.training.gradients import FlatGradients
from hpcgnn.training.optimizer import FlatAdam

COMM = MPI.COMM_WORLD


def with_gradients(seed=0):
    """A network after a backward pass, and its gradients in one buffer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    gradients = FlatGradients(model)
    model(torch.randn(20, 5)).square().mean().backward()
    gradients.collect(MPI.COMM_SELF)
    return model, gradients


@pytest.mark.parametrize("largest", [1e-6, 0.01, 0.5, 1e6])
def test_gradients_are_clipped_as_torch_clips_them(largest):
    (model, gradients), (expected, _) = with_gradients(), with_gradients()
    before = gradients.flat.clone()
    gradients.clip(largest)
    norm = nn.utils.clip_grad_norm_(expected.parameters(), largest)
    for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-5, atol=1e-12)
    assert torch.equal(gradients.flat, before) == (norm <= largest)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_left_for_the_check(value):
    _, gradients = with_gradients()
    gradients.flat[3] = value
    before = gradients.flat.clone()
    gradients.clip(0.01)
    torch.testing.assert_close(gradients.flat, before, equal_nan=True, rtol=0, atol=0)


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_no_step_of_a_training_is_longer(shared_path, shards, monkeypatch, precision):
    norms, step = {}, FlatAdam.step

    def losses_with(clip):
        """Losses of a training, the norms of whose gradients are noted."""
        noted = norms.setdefault(clip, [])
        monkeypatch.setattr(FlatAdam, "step",
                            lambda adam: noted.append(adam._gradients.flat.double().norm().item()) or step(adam))
        return losses(train(COMM, shards, shared_path / f"run-{clip}", clip_norm=clip, precision=precision)[1])

    free, never, clipped = (losses_with(clip) for clip in (0.0, 1e9, 0.05))
    assert max(norms[0.0]) > 0.1 and max(norms[0.05]) == pytest.approx(0.05, rel=1e-5)
    np.testing.assert_array_equal(free, never)
    assert not np.array_equal(free, clipped) and clipped[-1] < clipped[0]
    assert len(set(COMM.allgather(tuple(norms[0.05])))) == 1
