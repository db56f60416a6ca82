"""Pipelined epochs: a row that is read is of this epoch or of the one before, whatever widths and modes take turns."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from exchange.epochs import VALUES, ChangingBits, Epochs
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.bits import EpochPlan, UniformBits
from hpcgnn.exchange.carrier import PIPELINES
from hpcgnn.exchange.kinds import Kept
from hpcgnn.nn.neighborhood import Neighborhood

EPOCHS, DIMS = 8, (5, 9)
COMM = MPI.COMM_WORLD
KINDS = {"plain": {}, "predicted": {"new_kind": partial(Kept, predicts=True)}, "paced": {"bytes_per_second": 2e7}}


def schedule(seed, num_epochs=EPOCHS):
    """(num_epochs,) bool, which epochs are asynchronous; the first can't be."""
    asynchronous = np.random.default_rng(seed).random(num_epochs) < 0.6
    asynchronous[0] = False
    return asynchronous.tolist()


@pytest.mark.covering
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("kind", ["plain", "paced"])
def test_rows_are_of_this_epoch_or_of_the_one_before_while_widths_change_every_epoch(cut, shape, kind):
    epochs = Epochs(COMM, cut(shape, COMM.size), **KINDS[kind])
    for epoch, is_asynchronous in enumerate(schedule(COMM.size)):
        epochs.begin(epoch, ChangingBits(epoch), is_asynchronous)
        whose = epoch - is_asynchronous
        for dim in DIMS:
            now, then = epochs.stamp(epoch, dim), epochs.stamp(whose, dim)
            halo, gradient = epochs.there_and_back(now, now)
            assert torch.equal(halo, then[epochs.num_inner:])
            assert torch.equal(gradient, epochs.copies * then[:epochs.num_inner])
        assert epochs.exchange.training.take().staleness == is_asynchronous
    epochs.exchange.forget()


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_messages_that_were_read_are_gone_at_once(cut, pipeline):
    """Not when Python next looks for objects that hold each other, which may be epochs later."""
    epochs, received = Epochs(COMM, cut("undirected", COMM.size), pipeline=pipeline), []
    gc.disable()
    try:
        for epoch in range(5):
            epochs.begin(epoch, UniformBits(8), epoch > 0)
            epochs.there_and_back(epochs.stamp(epoch), epochs.stamp(epoch))
            epochs.exchange.state()      # all have arrived
            received.append([weakref.ref(kept.last.received) for kept in epochs.exchange._kind._kept.values()])
        assert [[message() is None for message in both] for both in received] == [[True] * 2] * 4 + [[False] * 2]
    finally:
        gc.enable()
    epochs.exchange.forget()


@pytest.mark.covering
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("choices, overlaps", [((1, 2, 4, 8), True), ((1, 2, 4, 8), False), ((1, 8, 16, 32), True)])
def test_sums_over_packed_rows_have_inner_rows_of_now_and_halo_rows_of_before(cut, shape, choices, overlaps):
    epochs = Epochs(COMM, cut(shape, COMM.size), overlaps=overlaps)
    for epoch, is_asynchronous in enumerate(schedule(17 + COMM.size)):
        epochs.begin(epoch, ChangingBits(epoch, choices), is_asynchronous)
        place = Neighborhood(epochs.graph, epochs.graph.hop("sum"), False, True, "sum", 0.0)
        h = epochs.stamp(epoch)
        out, _ = place.aggregate(h[:epochs.num_inner])
        h[epochs.num_inner:] -= VALUES * is_asynchronous
        assert torch.equal(out, epochs.graph.aggregate(h, "sum"))
    epochs.exchange.forget()


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", list(KINDS))
def test_an_asynchronous_epoch_without_one_before_is_refused(cut, kind):
    epochs = Epochs(COMM, cut("undirected", COMM.size), **KINDS[kind])
    rows = epochs.stamp(0)
    for _ in range(2):
        epochs.begin(0, UniformBits(8), is_asynchronous=True)
        with pytest.raises(KernelError, match=r"^epoch 0 is asynchronous and no rows of layer 0 were sent before it;"):
            epochs.graph.halo(rows[:epochs.num_inner])
        epochs.exchange.forget()
        for epoch in range(2):
            epochs.begin(epoch, UniformBits(8), is_asynchronous=epoch == 1)
            epochs.there_and_back(rows, rows)
        # The next attempt comes after a training, of which nothing may be left.
        epochs.exchange.forget()


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("later", [2, 5])
def test_rows_of_an_epoch_long_ago_are_never_read(cut, later):
    epochs = Epochs(COMM, cut("undirected", COMM.size))
    epochs.begin(0, UniformBits(4))
    epochs.there_and_back(epochs.stamp(0), epochs.stamp(0))
    epochs.begin(later, UniformBits(4), is_asynchronous=True)
    with pytest.raises(KernelError, match=f"^halo rows are {later} epochs old, 1 are allowed$"):
        epochs.graph.halo(epochs.stamp(later)[:epochs.num_inner])
    epochs.exchange.forget()


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("smoothing", [0.0, 0.75])
def test_smoothed_rows_are_the_running_mean_of_what_arrived(cut, smoothing):
    """Smoothing by binary fractions of small integers has no rounding for a few epochs."""
    epochs = Epochs(COMM, cut("directed", COMM.size), partial(Kept, smoothing=smoothing))
    arrived = []
    for epoch, is_asynchronous in enumerate([False, False, True, True, True, False, True]):
        epochs.begin(epoch, UniformBits(32), is_asynchronous)
        halo, gradient = epochs.there_and_back(epochs.stamp(epoch), epochs.stamp(epoch))
        arrived.append(epochs.stamp(epoch))
        mean = arrived[0]
        for rows in arrived[1:epoch + 1 - is_asynchronous]:
            mean = smoothing * mean + (1 - smoothing) * rows
        assert torch.equal(halo, mean[epochs.num_inner:])
        assert torch.equal(gradient, epochs.copies * mean[:epochs.num_inner])
    epochs.exchange.forget()


@pytest.mark.parallel([1, 2, 3, 4])
def test_evaluation_between_asynchronous_epochs_reads_rows_of_now(cut):
    """Evaluation's messages travel beside those of the training epoch."""
    epochs = Epochs(COMM, cut("undirected", COMM.size), **KINDS["paced"])
    for epoch in range(6):
        epochs.begin(epoch, ChangingBits(epoch), is_asynchronous=epoch > 0)
        epochs.there_and_back(epochs.stamp(epoch), epochs.stamp(epoch))
        epochs.graph.begin_forward(0, 0, is_training=False)
        rows = epochs.stamp(20 + epoch)
        assert torch.equal(epochs.graph.halo(rows[:epochs.num_inner]), rows)
    epochs.exchange.forget()


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("is_measured", [False, True])
def test_rows_are_sampled_only_for_a_plan_that_asks_how_far_they_moved(cut, is_measured):
    epochs = Epochs(COMM, cut("undirected", COMM.size))
    for epoch in range(4):
        epochs.exchange.begin_epoch(EpochPlan(UniformBits(8), epoch > 0, is_measured=is_measured))
        epochs.graph.begin_forward(0, epoch, is_training=True)
        epochs.there_and_back(epochs.stamp(epoch), epochs.stamp(epoch))
    moved = [bool(sums.any()) for sums in epochs.exchange.movements().values()]
    assert moved == [is_measured and COMM.size > 1] * len(moved)
    assert len(moved) == 2
    epochs.exchange.forget()
