"""Skipped broadcasts: ranks at rest send once in so many epochs, and no row is read that is older than the bound."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from exchange.epochs import VALUES, Epochs
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.kinds import Skipped
from hpcgnn.exchange.kinds.skipped import Broadcaster
from hpcgnn.exchange.transfer import EXCHANGES

COMM = MPI.COMM_WORLD
HUGE = 1e9
PLAIN = UniformBits(32)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("staleness", [1, 3])
def test_ranks_that_never_move_enough_send_at_the_bound_and_not_before(cut, shape, staleness):
    epochs = Epochs(COMM, cut(shape, COMM.size), partial(Skipped, HUGE, staleness))
    num_rows = sum(map(len, epochs.plan.boundary)) + sum(map(len, epochs.plan.halo))
    for epoch in range(3 * (staleness + 1)):
        epochs.begin(epoch, PLAIN)
        halo, gradient = epochs.there_and_back(epochs.stamp(epoch), epochs.stamp(epoch))
        age = epoch % (staleness + 1)
        then = epochs.stamp(epoch - age)
        assert torch.equal(halo, then[epochs.num_inner:])
        assert torch.equal(gradient, epochs.copies * then[:epochs.num_inner])
        traffic = epochs.exchange.training.take()
        assert traffic.payload_bytes == (4 * 5 * num_rows if age == 0 else 0)
        assert traffic.staleness == (age if num_rows else 0)


@pytest.mark.parallel([1, 2, 3, 4])
def test_rows_that_move_at_all_are_always_sent_where_no_change_is_small(cut, shape):
    epochs = Epochs(COMM, cut(shape, COMM.size), partial(Skipped, 0.0, 4))
    for epoch in range(5):
        epochs.begin(epoch, PLAIN)
        rows = epochs.stamp(epoch)
        halo, gradient = epochs.there_and_back(rows, rows)
        assert torch.equal(halo, rows[epochs.num_inner:])
        assert torch.equal(gradient, epochs.copies * rows[:epochs.num_inner])
        assert epochs.exchange.training.take().staleness == 0


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("algorithm", list(EXCHANGES))
def test_one_rank_may_send_while_the_others_don_t(cut, algorithm):
    """Odd ranks move, even ones stand still."""
    epochs = Epochs(COMM, cut("undirected", COMM.size), partial(Skipped, 0.01, 5), algorithm)
    owner_moves = torch.from_numpy(epochs.pieces.owner[epochs.graph.node_id] % 2 == 1)[:, None]
    for epoch in range(5):
        epochs.begin(epoch, PLAIN)
        rows = torch.where(owner_moves, epochs.stamp(epoch), epochs.stamp(0))
        halo = epochs.graph.halo(rows[:epochs.num_inner].clone())[epochs.num_inner:]
        assert torch.equal(halo, rows[epochs.num_inner:])
        traffic = epochs.exchange.training.take()
        assert (traffic.payload_bytes > 0) == (epoch == 0 or COMM.rank % 2 == 1)
        stands_still = [peer for peer, rows in zip(epochs.plan.peers, epochs.plan.halo, strict=True)
                        if len(rows) and peer % 2 == 0]
        assert traffic.staleness == (epoch if stands_still else 0)


@pytest.mark.parallel([1, 2, 3])
def test_a_change_below_the_threshold_is_kept_back_and_one_above_is_sent(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), partial(Skipped, 0.1, 100))
    base = epochs.stamp(1) + VALUES
    for epoch, (factor, expected) in enumerate([(1.0, 1.0), (1.0625, 1.0), (1.125, 1.125), (1.1875, 1.125)]):
        epochs.begin(epoch, PLAIN)
        halo, _ = epochs.there_and_back(factor * base, base)
        assert torch.equal(halo, expected * base[epochs.num_inner:])


@pytest.mark.parallel([1, 2])
def test_rows_are_as_old_as_the_oldest_peers():
    broadcaster = Broadcaster(HUGE, staleness=3)
    broadcaster.agree(COMM, tuple(range(COMM.size)), torch.ones(4, 2), np.arange(4, dtype=np.int32), 10)
    peers = np.ones(COMM.size, bool)
    assert [broadcaster.age(epoch, peers) for epoch in (10, 12, 14)] == [0, 2, 4]
    assert broadcaster.age(14, ~peers) == 0


@pytest.mark.parallel([2, 3])
def test_an_age_beyond_the_bound_is_an_error(monkeypatch, cut):
    """Ranks that are made to skip past the bound: nobody reads what they sent before."""
    epochs = Epochs(COMM, cut("undirected", COMM.size), partial(Skipped, HUGE, 3))
    rows = epochs.stamp(0)
    epochs.begin(0, PLAIN)
    epochs.there_and_back(rows, rows)
    monkeypatch.setattr(Broadcaster, "agree", lambda *_: np.zeros(COMM.size, bool))
    epochs.begin(3, PLAIN)
    epochs.graph.halo(rows[:epochs.num_inner])
    epochs.begin(4, PLAIN)
    with pytest.raises(KernelError, match=r"^halo rows are 4 epochs old, 3 are allowed$"):
        epochs.graph.halo(rows[:epochs.num_inner])


@pytest.mark.parallel([1, 2, 3])
def test_a_forgotten_exchange_sends_in_its_next_epoch(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), partial(Skipped, HUGE, 9))
    for epoch in (0, 1):
        epochs.begin(epoch, PLAIN)
        epochs.there_and_back(epochs.stamp(epoch), epochs.stamp(epoch))
        epochs.exchange.forget()
    epochs.begin(2, PLAIN)
    halo, _ = epochs.there_and_back(epochs.stamp(2), epochs.stamp(2))
    assert torch.equal(halo, epochs.stamp(2)[epochs.num_inner:])
