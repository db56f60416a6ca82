"""Rotated rows in exchanges: what is read is what the oracle decodes of the rows that were sent, by whom and when."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from exchange.epochs import SEED, ChangingBits, Epochs
from mpi4py import MPI
from reference import stream_of
from reference_rotation import encode_rotated

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.codec import Codec, Coding, encode
from hpcgnn.exchange.kinds import Fresh, Kept, Skipped
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.trace import Trace
from hpcgnn.ops.counter import BACKWARD, FORWARD, CounterKey
from hpcgnn.widths import PACKED_WIDTHS

COMM = MPI.COMM_WORLD
ROTATE = {FORWARD: 6, BACKWARD: 7}
BOTH, DIM = frozenset({FORWARD, BACKWARD}), 24


def rows_of(node_id, epoch):
    """(n, DIM) float32, a function of node and epoch, so that every rank knows what any other sent."""
    columns, node_id = np.arange(DIM), np.asarray(node_id)[:, None]
    return (np.sin(node_id * (columns + 1.0) + epoch) * 10.0 ** (node_id % 3 - 1)).astype(np.float32)


def rotated_rows(node_id, widths, purpose, epoch, sender):
    """What a receiver reads of the rows of `node_id` of an epoch."""
    part = sender if purpose == BACKWARD else 0
    return encode_rotated(rows_of(node_id, epoch), widths, False, node_id, SEED, epoch,
                          stream_of(ROTATE[purpose], 0, part))[1]


def expected_halo(epochs, bit_plan, epoch):
    expected = np.zeros((epochs.part.num_halo, DIM), np.float32)
    for source, listed in zip(epochs.plan.peers, epochs.plan.halo, strict=True):
        widths = bit_plan.widths(0, FORWARD, source, COMM.rank, listed)
        if len(listed):
            expected[listed.index] = rotated_rows(listed.node_id, widths, FORWARD, epoch, source)
    return expected


def expected_gradient(epochs, bit_plan, epoch):
    """Sums in the order of the ranks, as the gradients of halo rows come home."""
    expected = np.zeros((epochs.num_inner, DIM), np.float32)
    for source, listed in zip(epochs.plan.peers, epochs.plan.boundary, strict=True):
        widths = bit_plan.widths(0, BACKWARD, source, COMM.rank, listed)
        if len(listed):
            expected[listed.index] += rotated_rows(listed.node_id, widths, BACKWARD, epoch, source)
    return expected


def exchanged(epochs, epoch, bit_plan, is_asynchronous=False):
    """Collective: halo rows and gradients of one epoch, as arrays."""
    epochs.begin(epoch, bit_plan, is_asynchronous)
    rows = torch.from_numpy(rows_of(epochs.graph.node_id, epoch))
    return [found.numpy() for found in epochs.there_and_back(rows, rows)]


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("algorithm", ["ring", "alltoallv"])
def test_rows_read_equal_the_oracle_at_every_width(cut, shape, algorithm):
    epochs = Epochs(COMM, cut(shape, COMM.size), Fresh, algorithm, rotated=BOTH)
    for epoch in range(3):
        bit_plan = ChangingBits(epoch, PACKED_WIDTHS)
        halo, gradient = exchanged(epochs, epoch, bit_plan)
        np.testing.assert_array_equal(halo, expected_halo(epochs, bit_plan, epoch))
        np.testing.assert_array_equal(gradient, expected_gradient(epochs, bit_plan, epoch))


@pytest.mark.parallel(2)
def test_rows_of_the_epoch_before_are_read_with_its_key(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), Kept, rotated=BOTH)
    for epoch, is_asynchronous in enumerate([False, True, True, False]):
        halo, gradient = exchanged(epochs, epoch, ChangingBits(epoch, PACKED_WIDTHS), is_asynchronous)
        whose = epoch - is_asynchronous
        bit_plan = ChangingBits(whose, PACKED_WIDTHS)
        np.testing.assert_array_equal(halo, expected_halo(epochs, bit_plan, whose))
        np.testing.assert_array_equal(gradient, expected_gradient(epochs, bit_plan, whose))
    epochs.exchange.forget()


@pytest.mark.parallel(2)
def test_a_skipped_rank_s_rows_are_read_with_the_key_of_the_epoch_that_sent_them(cut):
    epochs = Epochs(COMM, cut("undirected", COMM.size), partial(Skipped, 1e9, 2), rotated=BOTH)
    for epoch in range(4):
        halo, gradient = exchanged(epochs, epoch, UniformBits(2))
        whose = epoch - epoch % 3
        np.testing.assert_array_equal(halo, expected_halo(epochs, UniformBits(2), whose))
        np.testing.assert_array_equal(gradient, expected_gradient(epochs, UniformBits(2), whose))
    epochs.exchange.forget()


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("purpose", [FORWARD, BACKWARD])
def test_one_direction_may_be_rotated_alone(cut, purpose):
    pieces = cut("undirected", COMM.size)
    one_way, both, neither = (exchanged(Epochs(COMM, pieces, Fresh, rotated=rotated), 3, UniformBits(1))
                              for rotated in (frozenset({purpose}), BOTH, frozenset()))
    for direction, found, rotated, affine in zip((FORWARD, BACKWARD), one_way, both, neither, strict=True):
        np.testing.assert_array_equal(found, rotated if direction == purpose else affine)
        assert not np.array_equal(rotated, affine)


@pytest.mark.parametrize("purpose", [FORWARD, BACKWARD])
def test_a_trace_tells_the_norms_of_rotated_rows_at_every_width(cut, purpose):
    """dim * row_range^2 / 6 is the squared norm, within what 512 columns of a rotated row differ from normal ones: less
    than 15 % at 2 bits and more, where the step follows the norm alone, 25 % at 1 bit.
    """
    plan = ExchangePlan.build(cut("undirected", 3).parts[0])
    bit_plan, dim = ChangingBits(0, (1, 2, 4, 8, 16)), 512
    messages = Codec(plan, bit_plan, Coding(rotated=BOTH)).messages(0, purpose, dim)
    scale = 10.0 ** np.random.default_rng(1).integers(-3, 4, (max(plan.num_inner, plan.num_halo), 1))
    rows = (np.random.default_rng(2).exponential(size=(len(scale), dim)) * scale).astype(np.float32)
    buffers = [np.empty(size, np.uint8) for size in messages.send_sizes]
    encode(messages, torch.from_numpy(rows), CounterKey(SEED, 0, purpose, 0), buffers)
    trace = Trace.read(messages, buffers)
    assert (trace.dim, trace.code) == (dim, "rotated")
    for listed, layout, row_range in zip(messages.send_rows, messages.send_layouts, trace.row_range, strict=True):
        found = dim * row_range.astype(np.float64) ** 2 / 6
        expected = (rows[listed.index].astype(np.float64) ** 2).sum(axis=1)
        near = np.where(layout.bit_width == 1, 0.25, 0.15)
        is_coded = layout.bit_width <= 8
        assert (np.abs(found - expected) <= near * expected)[is_coded].all()
        assert not found[~is_coded].any()


@pytest.mark.parametrize("bits, code, is_packed", [(8, "affine", True), (8, "rotated", False), (32, "rotated", False)])
def test_only_affine_codes_are_read_from_their_messages(cut, bits, code, is_packed):
    rotated = BOTH if code == "rotated" else frozenset()
    plan = ExchangePlan.build(cut("undirected", 2).parts[0])
    assert Codec(plan, UniformBits(bits), Coding(rotated=rotated)).messages(1, FORWARD, 9).is_packed == is_packed


@pytest.mark.parametrize("purpose", [FORWARD, BACKWARD])
def test_both_sides_of_a_message_of_rotated_rows_agree_on_two_bytes_a_row_beside_the_codes(cut, purpose):
    plans = [ExchangePlan.build(part) for part in cut("directed", 3).parts]
    messages = [Codec(plan, UniformBits(2), Coding(rotated=BOTH)).messages(2, purpose, 13) for plan in plans]
    for rank, mine in enumerate(messages):
        assert mine.send_sizes == tuple(other.receive_sizes[rank] for other in messages)
        assert mine.send_sizes == tuple((2 + 4) * len(rows) for rows in mine.send_rows)
