"""Both sides of every message list the same rows in the same order, and the ring meets every pair once."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.codec import Codec
from hpcgnn.exchange.plan import ExchangePlan, ring_rounds
from hpcgnn.ops.counter import BACKWARD, FORWARD


@pytest.fixture(params=[1, 2, 3, 5])
def plans(request, cut, shape):
    return [ExchangePlan.build(part) for part in cut(shape, request.param).parts]


def test_sender_and_receiver_list_the_same_ascending_nodes(plans):
    for plan in plans:
        assert len(plan.boundary[plan.rank]) == len(plan.halo[plan.rank]) == 0
        for peer in plans:
            sent, received = plan.boundary[peer.rank], peer.halo[plan.rank]
            np.testing.assert_array_equal(sent.node_id, received.node_id)
            assert (np.diff(sent.node_id) > 0).all()
            assert (sent.index < plan.num_inner).all() and (received.index < peer.num_halo).all()
            assert sent.index.dtype == received.index.dtype == np.int32


def test_halo_rows_are_received_exactly_once(plans):
    for plan in plans:
        rows = np.concatenate([listed.index for listed in plan.halo])
        np.testing.assert_array_equal(np.sort(rows), np.arange(plan.num_halo))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7])
def test_every_round_is_a_permutation_and_all_pairs_meet_once(num_ranks):
    rounds = [ring_rounds(rank, num_ranks) for rank in range(num_ranks)]
    for i in range(num_ranks - 1):
        assert sorted(rounds[rank][i][0] for rank in range(num_ranks)) == list(range(num_ranks))
        assert all(rounds[rounds[rank][i][0]][i][1] == rank for rank in range(num_ranks))
    pairs = {(rank, destination) for rank in range(num_ranks) for destination, _ in rounds[rank]}
    assert len(pairs) == num_ranks * (num_ranks - 1)


@pytest.mark.parametrize("purpose", [FORWARD, BACKWARD])
@pytest.mark.parametrize("bits", [1, 8, 32])
def test_sizes_of_both_sides_agree_without_negotiation(plans, purpose, bits):
    messages = [Codec(plan, UniformBits(bits)).messages(2, purpose, 13) for plan in plans]
    for rank, mine in enumerate(messages):
        assert mine.send_sizes == [other.receive_sizes[rank] for other in messages]
        assert mine.payload_bytes + mine.parameter_bytes == sum(mine.send_sizes)
        assert mine.num_values == 13 * sum(len(rows) for rows in mine.send_rows)


def test_backward_messages_go_the_other_way(plans):
    for plan in plans:
        codec = Codec(plan, UniformBits(4))
        forward, backward = codec.messages(0, FORWARD, 5), codec.messages(0, BACKWARD, 5)
        assert forward.send_rows == backward.receive_rows == plan.boundary
        assert forward.receive_rows == backward.send_rows == plan.halo
        assert codec.messages(0, FORWARD, 5) is forward
