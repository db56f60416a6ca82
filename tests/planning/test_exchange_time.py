"""Seconds of an exchange: by hand, by the closed form, and simulated, up to 10,000 ranks."""

from __future__ import annotations

import numpy as np
import pytest
from covering import long_but
from planning_setup import NETWORK

from hpcgnn.planning.exchange_time import EAGER_BYTES, exchange_seconds, simulate_exchange, sum_seconds

MB = 1_000_000
NEAR, FAR = 1e-6 + MB / 10e9, 5e-6 + MB / 4e9     # seconds of a message of 1 MB within a node and between nodes
BUSY = MB / 8e9                                   # for which it keeps an interface busy


def both(messages, num_ranks, network=NETWORK):
    """(when each rank has finished, by simulation; seconds by the closed form) of (source, destination, bytes)."""
    columns = [np.array(column) for column in zip(*messages, strict=True)]
    return simulate_exchange(*columns, num_ranks, network), exchange_seconds(*columns, num_ranks, network)


def test_nothing_takes_no_time():
    assert both([(0, 1, 0)], 2)[0].tolist() == [0, 0] and both([(0, 1, 0)], 2)[1] == 0


@pytest.mark.parametrize("destination, seconds", [(1, NEAR), (4, FAR)])
def test_one_message_takes_its_latency_and_its_bytes(destination, seconds):
    finished, closed = both([(0, destination, MB)], 8)
    assert finished.tolist() == pytest.approx([seconds if rank in (0, destination) else 0 for rank in range(8)])
    assert closed == pytest.approx(seconds)


def test_both_directions_of_a_pair_travel_at_once():
    finished, closed = both([(0, 1, MB), (1, 0, MB)], 2)
    assert finished.max() == pytest.approx(NEAR) and closed == pytest.approx(NEAR)


def test_rounds_of_a_rank_follow_each_other():
    finished, closed = both([(0, 1, MB), (0, 2, MB), (0, 3, MB)], 4)
    assert finished.tolist() == pytest.approx([3 * NEAR, NEAR, 2 * NEAR, 3 * NEAR])
    assert closed == pytest.approx(3 * NEAR)


def test_a_long_message_waits_until_its_receiver_posts_it():
    """Rank 1 receives from 0 before it may take what rank 3 sends it two rounds later; rank 3 waits meanwhile."""
    finished, closed = both([(0, 1, 10 * MB), (3, 1, MB)], 4)
    long = 1e-6 + 10 * MB / 10e9
    assert finished.tolist() == pytest.approx([long, long + NEAR, 0, long + NEAR])
    assert closed == pytest.approx(long + NEAR)


def test_a_short_message_leaves_at_once():
    finished, _ = both([(0, 1, 10 * MB), (3, 1, EAGER_BYTES)], 4)
    assert finished[3] == 0 and finished[1] == pytest.approx(1e-6 + 10 * MB / 10e9)


def test_ranks_of_a_node_take_turns_at_its_interface():
    finished, closed = both([(rank, rank + 4, MB) for rank in range(4)], 8)
    assert np.sort(finished)[::2].tolist() == pytest.approx([FAR + turn * BUSY for turn in range(4)])
    assert closed == pytest.approx(4 * BUSY + 5e-6)


def test_an_interface_that_receives_is_shared_too():
    finished, closed = both([(4 * rank + 4, rank, MB) for rank in range(4)], 20)
    assert np.sort(finished[:4]).tolist() == pytest.approx([FAR + turn * BUSY for turn in range(4)])
    assert closed == pytest.approx(4 * BUSY + 5e-6)


def neighbors(num_ranks, count, seed=0):
    """Messages of each rank to `count` others around it and anywhere, short and long ones; as arrays."""
    rng = np.random.default_rng(seed)
    source = np.repeat(np.arange(num_ranks), count)
    offset = np.where(rng.random(len(source)) < 0.7, rng.integers(1, 40, len(source)),
                      rng.integers(1, num_ranks, len(source)))
    pair = np.unique(source * num_ranks + (source + offset) % num_ranks)
    pair = pair[pair // num_ranks != pair % num_ranks]
    return pair // num_ranks, pair % num_ranks, rng.integers(1, 200_000, len(pair))


@pytest.mark.parametrize("num_ranks, count", long_but((0, 1, 2), [(8, 5), (64, 20), (1000, 30), (10_000, 30)]))
def test_the_closed_form_is_a_lower_bound_that_is_not_far_off(num_ranks, count):
    source, destination, num_bytes = neighbors(num_ranks, count)
    simulated = simulate_exchange(source, destination, num_bytes, num_ranks, NETWORK).max()
    closed = exchange_seconds(source, destination, num_bytes, num_ranks, NETWORK)
    print(f"{num_ranks} ranks, {len(source)} messages: simulated {simulated:.6f} s, closed form {closed:.6f} s")
    assert closed <= simulated * (1 + 1e-9)
    assert simulated <= 4 * closed


def test_every_rank_is_done_when_its_last_message_is():
    source, destination, num_bytes = neighbors(200, 10, seed=1)
    finished = simulate_exchange(source, destination, num_bytes, 200, NETWORK)
    assert (finished[source] > 0).all() and (finished[destination] > 0).all()
    own = np.bincount(source, weights=num_bytes, minlength=200) / NETWORK.within_rate
    assert (finished >= own).all()


def test_a_sum_is_halved_and_gathered_first_within_nodes_then_between_them():
    inside = 2 * 2 * 1e-6 + 2 * 3 / 4 * MB / 10e9
    assert sum_seconds(MB, 1, NETWORK) == 0
    assert sum_seconds(MB, 4, NETWORK) == pytest.approx(inside)
    assert sum_seconds(MB, 32, NETWORK) == pytest.approx(inside + 2 * 3 * 5e-6 + 2 * 7 / 8 * MB / 4e9)
