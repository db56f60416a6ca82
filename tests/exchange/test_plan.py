"""Both sides of every message list the same rows in the same order, and the ring meets every pair once."""

from __future__ import annotations

import numpy as np
import pytest
from exchange.peers import by_rank

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.codec import Codec
from hpcgnn.exchange.plan import ExchangePlan, ring_rounds
from hpcgnn.ops.counter import BACKWARD, FORWARD


@pytest.fixture(params=[1, 2, 3, 5])
def plans(request, cut, shape):
    return [ExchangePlan.build(part) for part in cut(shape, request.param).parts]


def test_sender_and_receiver_list_the_same_ascending_nodes(plans):
    for plan in plans:
        assert len(plan.boundary[plan.own_place]) == len(plan.halo[plan.own_place]) == 0
        for peer in plans:
            sent, received = by_rank(plan, plan.boundary)[peer.rank], by_rank(peer, peer.halo)[plan.rank]
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
    rounds = [ring_rounds(rank, num_ranks, range(num_ranks)) for rank in range(num_ranks)]
    for i in range(num_ranks - 1):
        assert sorted(rounds[rank][i][0] for rank in range(num_ranks)) == list(range(num_ranks))
        assert all(rounds[rounds[rank][i][0]][i][1] == rank for rank in range(num_ranks))
    pairs = {(rank, destination) for rank in range(num_ranks) for destination, _ in rounds[rank]}
    assert len(pairs) == num_ranks * (num_ranks - 1)


@pytest.mark.parametrize("num_ranks", [2, 5, 12])
def test_rounds_among_some_peers_are_those_of_the_whole_ring_that_meet_one(num_ranks):
    """In the order of the whole ring; the rank itself stands where the whole ring meets a stranger."""
    rng = np.random.default_rng(num_ranks)
    for rank in range(num_ranks):
        peers = sorted({rank, *rng.choice(num_ranks, num_ranks // 2, replace=False).tolist()})
        met = [(after if after in peers else rank, before if before in peers else rank)
               for after, before in (((rank + i) % num_ranks, (rank - i) % num_ranks) for i in range(1, num_ranks))]
        found = [(peers[after], peers[before]) for after, before in ring_rounds(rank, num_ranks, peers)]
        assert found == [pair for pair in met if pair != (rank, rank)]


def test_two_ranks_are_peers_of_each_other_or_not(plans):
    for plan in plans:
        for peer in plans:
            assert (peer.rank in plan.peers) == (plan.rank in peer.peers)
        shared = [len(sent) + len(received) > 0 for sent, received in zip(plan.boundary, plan.halo, strict=True)]
        assert shared == [peer != plan.rank for peer in plan.peers]


@pytest.mark.parametrize("purpose", [FORWARD, BACKWARD])
@pytest.mark.parametrize("bits", [1, 8, 32])
def test_sizes_of_both_sides_agree_without_negotiation(plans, purpose, bits):
    messages = [Codec(plan, UniformBits(bits)).messages(2, purpose, 13) for plan in plans]
    for rank, mine in enumerate(messages):
        theirs = [by_rank(plan, other.receive_sizes, 0)[rank] for plan, other in zip(plans, messages, strict=True)]
        assert by_rank(plans[rank], mine.send_sizes, 0) == theirs
        assert mine.payload_bytes + mine.parameter_bytes == sum(mine.send_sizes)
        assert mine.num_values == 13 * sum(len(rows) for rows in mine.send_rows)


def test_backward_messages_go_the_other_way(plans):
    for plan in plans:
        codec = Codec(plan, UniformBits(4))
        forward, backward = codec.messages(0, FORWARD, 5), codec.messages(0, BACKWARD, 5)
        assert forward.send_rows == backward.receive_rows == plan.boundary
        assert forward.receive_rows == backward.send_rows == plan.halo
        assert codec.messages(0, FORWARD, 5) is forward
