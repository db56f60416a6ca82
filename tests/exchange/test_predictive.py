"""Predictive messages: sender and receiver hold the same rows to the last bit, and the error of rows at rest fades."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from exchange.epochs import ChangingBits, Epochs
from exchange.peers import by_rank
from mpi4py import MPI

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.kinds import Fresh, Kept
from hpcgnn.ops.counter import BACKWARD, FORWARD

COMM = MPI.COMM_WORLD
SYNCHRONOUS, PIPELINED = Fresh().predicting, Kept().predicting
DIM = 21


def moving_rows(epochs, epoch, dim=DIM):
    """(num_rows, dim), a function of node and epoch that settles, with offsets and scales that differ by row."""
    columns, node_id = np.arange(dim), epochs.graph.node_id[:, None]
    rows = 3 * (node_id % 5) + np.sin(node_id + columns + 1.0) * (1 + np.exp(-epoch / 4) * np.cos(epoch + columns))
    return torch.from_numpy((rows * 10.0 ** (node_id % 3 - 1)).astype(np.float32))


def sender_and_receiver(epochs, purpose):
    """Reconstructions of one exchange: what this rank has sent to each peer, what it has of each peer."""
    (site,) = (site for place, site in epochs.exchange._kind._kept.items() if place[1] == purpose)
    send, receive = epochs.plan.boundary, epochs.plan.halo
    if purpose == BACKWARD:
        send, receive = receive, send
    return (site.table.sent.rows.split([len(rows) for rows in send]),
            site.table._received.rows.split([len(rows) for rows in receive]))


def assert_both_sides_agree(epochs, purpose):
    """Collective: every receiver has what its sender believes."""
    sent, received = sender_and_receiver(epochs, purpose)
    told = by_rank(epochs.plan, [rows.numpy().tobytes() for rows in sent], b"")
    assert COMM.alltoall(told) == by_rank(epochs.plan, [rows.numpy().tobytes() for rows in received], b"")


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("choices", [(1,), (8,), (16,), (1, 2, 4, 8, 16, 32)], ids=str)
def test_both_sides_agree_to_the_last_bit_after_every_epoch(cut, choices):
    epochs = Epochs(COMM, cut("directed", COMM.size), SYNCHRONOUS)
    for epoch in range(8):
        epochs.begin(epoch, ChangingBits(epoch, choices))
        rows = moving_rows(epochs, epoch)
        halo, _ = epochs.there_and_back(rows, rows * 0.01)
        for purpose in (FORWARD, BACKWARD):
            assert_both_sides_agree(epochs, purpose)
        assert torch.equal(halo, torch.cat(sender_and_receiver(epochs, FORWARD)[1]))


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("rotated", [frozenset(), frozenset({FORWARD, BACKWARD})], ids=["affine", "rotated"])
def test_both_sides_agree_after_synchronous_epochs_of_a_pipeline(cut, shape, rotated):
    """An asynchronous epoch leaves the receiver one epoch behind; the next synchronous one brings both."""
    epochs = Epochs(COMM, cut(shape, COMM.size), PIPELINED, rotated=rotated)
    before = None
    for epoch, is_asynchronous in enumerate([False, True, True, False, False, True, False]):
        epochs.begin(epoch, ChangingBits(epoch), is_asynchronous)
        rows = moving_rows(epochs, epoch)
        halo, _ = epochs.there_and_back(rows, rows)
        sent, received = sender_and_receiver(epochs, FORWARD)
        assert torch.equal(halo, torch.cat(received))
        now = by_rank(epochs.plan, [rows.numpy().tobytes() for rows in sent], b"")
        arriving = COMM.alltoall(before if is_asynchronous else now)
        assert arriving == by_rank(epochs.plan, [rows.numpy().tobytes() for rows in received], b"")
        before = now
    epochs.exchange.forget()


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("is_pipelined", [False, True])
@pytest.mark.parametrize("rotated", [frozenset(), frozenset({FORWARD, BACKWARD})], ids=["affine", "rotated"])
def test_the_error_of_rows_at_rest_fades_at_every_width(cut, bits, is_pipelined, rotated):
    epochs = Epochs(COMM, cut("undirected", COMM.size), PIPELINED if is_pipelined else SYNCHRONOUS, rotated=rotated)
    rows = moving_rows(epochs, 0)
    for epoch in range(40):
        epochs.begin(epoch, UniformBits(bits), is_pipelined and epoch > 0)
        halo, gradient = epochs.there_and_back(rows, rows)
    epochs.exchange.forget()
    expected = rows[epochs.num_inner:]
    assert ((halo - expected).norm(dim=1) < 1e-4 * expected.norm(dim=1)).all()
    home = epochs.copies * rows[:epochs.num_inner]
    assert ((gradient - home).norm(dim=1) <= 1e-4 * home.norm(dim=1)).all()


@pytest.mark.parallel([2, 3])
def test_a_missed_epoch_resets_both_sides(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), SYNCHRONOUS)
    fresh = Epochs(COMM, cut("undirected", COMM.size), SYNCHRONOUS)
    for epoch in (0, 1, 2, 5):
        epochs.begin(epoch, UniformBits(2))
        rows = moving_rows(epochs, epoch)
        found = epochs.there_and_back(rows, rows)
        for purpose in (FORWARD, BACKWARD):
            assert_both_sides_agree(epochs, purpose)
    fresh.begin(5, UniformBits(2))
    expected = fresh.there_and_back(rows, rows)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("is_pipelined", [False, True])
def test_an_exchange_that_is_not_picked_sends_rows_and_one_that_is_begins_anew(cut, is_pipelined):
    """Epochs without differences have the rows of `Fresh`, the others those of a training that has only them."""
    pieces = cut("directed", COMM.size)
    picked = partial((PIPELINED if is_pipelined else SYNCHRONOUS), picks=True)
    picking, fresh, predicting = (Epochs(COMM, pieces, kind) for kind in (picked, Fresh, SYNCHRONOUS))
    expected = None
    for epoch, (does_differ, is_asynchronous) in enumerate([
            (0, 0), (1, 0), (1, 1), (0, 0), (1, 1), (1, 0), (0, 1), (0, 1), (1, 0), (1, 1), (0, 1), (1, 1)]):
        is_asynchronous = bool(is_asynchronous and is_pipelined)
        other, before = predicting if does_differ else fresh, expected
        rows = moving_rows(picking, epoch)
        for epochs in (picking, other):
            differing = frozenset({(0, FORWARD)} if does_differ else ())
            epochs.begin(epoch, UniformBits(1), is_asynchronous and epochs is picking, differing=differing)
        found, expected = (epochs.there_and_back(rows, rows)[0] for epochs in (picking, other))
        assert torch.equal(found, before if is_asynchronous else expected)
    picking.exchange.forget()


@pytest.mark.parallel([1, 2, 3])
def test_both_reconstructions_are_counted_as_memory(cut):
    epochs = Epochs(COMM, cut("directed", COMM.size), SYNCHRONOUS)
    assert epochs.exchange.state_bytes == 0
    epochs.begin(0, UniformBits(1))
    epochs.there_and_back(moving_rows(epochs, 0), moving_rows(epochs, 0))
    num_rows = sum(map(len, epochs.plan.boundary)) + sum(map(len, epochs.plan.halo))
    tables = 4 * DIM * 2 * num_rows     # a copy of what left and one of what came, forward and backward
    messages = sum(arena.num_bytes for site in epochs.exchange._kind._kept.values() for arena in site._arenas)
    assert epochs.exchange.state_bytes == tables + messages
    epochs.exchange.forget()
    assert epochs.exchange.state_bytes == 0
