"""Sampled boundary rows: both sides draw alike, and sums and gradients over the sample have the mean of the whole."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from exchange.epochs import SEED, Epochs
from exchange.peers import by_rank
from mpi4py import MPI

from hpcgnn.exchange.bits import UniformBits, draw
from hpcgnn.exchange.kinds import Sampled
from hpcgnn.exchange.kinds.sampled import kept_halo, sampled
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.nn.attention import GATConvolution
from hpcgnn.ops.counter import SAMPLE, CounterKey

COMM = MPI.COMM_WORLD
SHARE, TRIALS, DIM = 0.3, 100, 3
# Hoeffding: a mean of TRIALS independent values within a range R misses its expectation by R * t with a probability
# below 2 exp(-2 TRIALS t^2); at this t below 1e-7, for each of a few thousand values.
DEVIATION = math.sqrt(math.log(2e7) / (2 * TRIALS))


def spread(epochs, reduction, h):
    """(num_inner, DIM), the widest range of the sampled sum: what all halo rows together can add at 1 / SHARE."""
    only_halo = h.abs() / SHARE
    only_halo[:epochs.num_inner] = 0
    return epochs.graph.aggregate(only_halo, reduction)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_what_one_rank_sends_the_other_expects_in_every_epoch(cut, shape, share):
    pieces = cut(shape, COMM.size)
    plan = ExchangePlan.build(pieces.parts[COMM.rank])
    kept = []
    for epoch in range(8):
        drawn = sampled(plan, share, SEED, epoch)
        arriving = COMM.alltoall([rows.node_id.tolist() for rows in by_rank(plan, drawn.boundary)])
        assert arriving == [rows.node_id.tolist() for rows in by_rank(plan, drawn.halo)]
        kept.append(kept_halo(plan, share, SEED, epoch))
        assert kept[-1].sum() == sum(map(len, drawn.halo))
    assert plan.num_halo < 20 or len({row.tobytes() for row in kept}) > 1


def test_a_share_of_the_rows_is_drawn():
    """Within six standard deviations of a binomial."""
    num_rows = 20_000
    for share in (0.01, 0.1, 0.5, 0.9):
        drawn = draw(np.arange(num_rows), share, CounterKey(SEED, 3, SAMPLE, 0)).sum()
        assert abs(drawn - share * num_rows) < 6 * math.sqrt(num_rows * share * (1 - share))


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_sampled_sums_and_gradients_have_the_mean_of_full_ones(cut, reduction):
    epochs = Epochs(COMM, cut("directed", COMM.size), partial(Sampled, SHARE))
    h = 1 + torch.from_numpy(np.random.default_rng(3).random((len(epochs.pieces.owner), DIM)).astype(np.float32))
    rows = h[epochs.graph.node_id]
    sums, gradients = 0.0, 0.0
    for epoch in range(TRIALS):
        epochs.begin(epoch, UniformBits(32))
        leaf = rows[:epochs.num_inner].clone().requires_grad_()
        out = epochs.graph.aggregate(epochs.graph.halo(leaf), reduction)
        out.sum().backward()
        sums, gradients = sums + out.detach() / TRIALS, gradients + leaf.grad / TRIALS
    full = rows.clone().requires_grad_()
    expected = epochs.graph.aggregate(full, reduction)
    expected.sum().backward()
    assert ((sums - expected).abs() <= DEVIATION * spread(epochs, reduction, rows) + 1e-4).all()
    # Every rank's gradients of a node, brought together by the exchange that leaves none out.
    whole = torch.zeros(len(epochs.pieces.owner), DIM)
    whole[epochs.graph.node_id] = full.grad
    everywhere, far = whole.numpy().copy(), torch.zeros_like(whole)
    far[epochs.graph.node_id[epochs.num_inner:]] = full.grad[epochs.num_inner:]
    far = far.numpy()
    COMM.Allreduce(MPI.IN_PLACE, everywhere)
    COMM.Allreduce(MPI.IN_PLACE, far)
    inner_id = epochs.part.inner_id
    missed = np.abs(gradients.numpy() - everywhere[inner_id])
    assert (missed <= DEVIATION * far[inner_id] / SHARE + 1e-4).all()
    assert COMM.size == 1 or epochs.part.num_halo > 0


@pytest.mark.parallel([1, 2, 3])
def test_rows_and_gradients_that_are_kept_are_divided_by_the_share_and_others_are_zero(cut):
    epochs = Epochs(COMM, cut("directed", COMM.size), partial(Sampled, SHARE))
    stamp, bit_plan = 1 + epochs.stamp(0, DIM), UniformBits(32)
    for epoch in (3, 4):      # under one bit plan, and each with a sample of its own
        epochs.begin(epoch, bit_plan)
        halo, home = epochs.there_and_back(stamp, stamp)
    kept = torch.from_numpy(kept_halo(epochs.plan, SHARE, SEED, 4))[:, None]
    sent = np.concatenate([rows.index for rows in sampled(epochs.plan, SHARE, SEED, 4).boundary])
    num_copies = torch.from_numpy(np.bincount(sent, minlength=epochs.num_inner))[:, None]
    torch.testing.assert_close(halo, kept * stamp[epochs.num_inner:] / SHARE)
    torch.testing.assert_close(home, num_copies * stamp[:epochs.num_inner] / SHARE)
    assert COMM.size == 1 or (kept.any() and num_copies.any())


@pytest.mark.parallel([1, 2, 3])
def test_attention_over_a_sample_is_a_softmax_without_the_absent_neighbors(cut):
    epochs = Epochs(COMM, cut("directed", COMM.size), partial(Sampled, 0.4))
    torch.manual_seed(2)
    layer = GATConvolution(6, 4, 0.0, heads=2)
    rows = torch.from_numpy(np.random.default_rng(4).normal(size=(len(epochs.pieces.owner), 6)).astype(np.float32))
    rows = rows[epochs.graph.node_id]
    epochs.begin(7, UniformBits(32))
    with torch.no_grad():
        out = layer(epochs.graph, rows[:epochs.num_inner].clone())
    present = np.concatenate([np.ones(epochs.num_inner, bool), kept_halo(epochs.plan, 0.4, SEED, 7)])
    source, target = (index.numpy() for index in epochs.graph.edge_index)
    linked = np.zeros((epochs.num_inner, len(rows)), bool)
    linked[target, source] = True
    linked[np.arange(epochs.num_inner), np.arange(epochs.num_inner)] = True
    linked &= present
    z = (rows @ layer.weight.detach().T).view(len(rows), 2, 2)
    of_target, of_source = ((z * side.view(2, 2)).sum(2) for side in layer.attention.detach())
    score = torch.nn.functional.leaky_relu(of_target[:epochs.num_inner, None] + of_source[None], 0.2)
    alpha = score.masked_fill(~torch.from_numpy(linked)[:, :, None], -math.inf).softmax(dim=1)
    expected = torch.einsum("vuh,uhc->vhc", alpha, z).reshape(epochs.num_inner, 4) + layer.bias.detach()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert COMM.size == 1 or not present.all()


@pytest.mark.parallel([2, 3])
def test_bytes_are_those_of_the_rows_that_are_kept(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), partial(Sampled, SHARE))
    epochs.begin(4, UniformBits(32))
    epochs.there_and_back(epochs.stamp(0, DIM), epochs.stamp(0, DIM))
    drawn = sampled(epochs.plan, SHARE, SEED, 4)
    num_rows = sum(map(len, drawn.boundary)) + sum(map(len, drawn.halo))
    assert epochs.exchange.training.take().payload_bytes == 4 * DIM * num_rows
