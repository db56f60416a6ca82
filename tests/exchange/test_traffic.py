"""Counted bytes are what went to MPI, for both algorithms, and each kind of exchange is counted in its own place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcgnn.exchange import traffic as traffic_module
from hpcgnn.exchange import transfer
from hpcgnn.exchange.bits import EpochPlan, UniformBits
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transfer import EXCHANGES
from hpcgnn.ops.counter import FORWARD

DIM = 41


def rows_of(opened):
    return torch.from_numpy(opened.part.inner_id[:, None] + np.arange(DIM, dtype=np.float32)).float()


def forward_and_backward(opened, is_training=True):
    """Collective: one exchange each way; returns the rows received and the gradient taken home."""
    opened.graph.begin_forward(3, 4, is_training)
    h = rows_of(opened).requires_grad_()
    h_all = opened.graph.halo(h)
    (h_all * h_all.detach()).sum().backward()
    return h_all.detach(), h.grad


def counts_of(traffic):
    return traffic.payload_bytes, traffic.parameter_bytes, traffic.num_values


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("bits", [1, 4, 16])
def test_counted_bytes_went_to_mpi_and_both_algorithms_send_the_same(open_part, cut, shape, counting_comm, bits):
    pieces = cut(shape, counting_comm.size)
    part = pieces.parts[counting_comm.rank]
    num_rows = len(part.boundary_index) + part.num_halo
    seen = {}
    for algorithm in EXCHANGES:
        opened = open_part(counting_comm, pieces.dataset, pieces.owner, UniformBits(bits), algorithm)
        counting_comm.sent.clear()
        rows, gradient = forward_and_backward(opened)
        assert counting_comm.sent_bytes == opened.exchange.training.payload_bytes + \
            opened.exchange.training.parameter_bytes
        assert counts_of(opened.exchange.training) == (num_rows * ((DIM * bits + 7) // 8),
                                                       4 * num_rows if bits <= 8 else 0, num_rows * DIM)
        to_each = [sum(size for peer, size in counting_comm.sent if peer == q) for q in range(counting_comm.size)]
        seen[algorithm] = to_each, rows.numpy().tobytes(), gradient.numpy().tobytes()
    assert seen["ring"] == seen["alltoallv"]


@pytest.mark.parallel([1, 2, 3, 4])
def test_bytes_sent_are_bytes_received_over_all_ranks(open_part, cut, shape):
    comm = MPI.COMM_WORLD
    pieces = cut(shape, comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner, UniformBits(4))
    forward_and_backward(opened)
    sent = comm.allreduce(opened.exchange.training.payload_bytes)
    assert sent == 2 * sum(part.num_halo for part in pieces.parts) * ((DIM + 1) // 2)


@pytest.mark.parallel([2, 3, 4])
def test_a_rank_with_nothing_to_send_calls_no_send(open_part, cut, counting_comm):
    pieces = cut("downhill", counting_comm.size)
    opened = open_part(counting_comm, pieces.dataset, pieces.owner, UniformBits(8))
    counting_comm.sent.clear()
    opened.graph.begin_forward(0, 0, is_training=True)
    opened.graph.halo(rows_of(opened))
    is_last = counting_comm.rank == counting_comm.size - 1
    assert (len(counting_comm.sent) == 0) == is_last
    assert (counts_of(opened.exchange.training) == (0, 0, 0)) == is_last
    assert (opened.part.num_halo == 0) == (counting_comm.rank == 0)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("algorithm", list(EXCHANGES))
def test_input_rows_cross_once_in_float32_and_are_counted_apart(open_part, cut, counting_comm, algorithm):
    pieces = cut("directed", counting_comm.size)
    opened = open_part(counting_comm, pieces.dataset, pieces.owner, UniformBits(1), algorithm)
    num_sent = len(opened.part.boundary_index)
    assert counts_of(opened.exchange.setup) == (4 * 3 * num_sent, 0, 3 * num_sent)
    assert counting_comm.sent_bytes == 4 * 3 * num_sent
    for epoch in range(3):
        opened.graph.begin_forward(0, epoch, is_training=True)
        assert opened.graph.halo(opened.graph.x) is opened.graph.x_all
    assert counting_comm.sent_bytes == 4 * 3 * num_sent
    assert counts_of(opened.exchange.training) == counts_of(opened.exchange.evaluation) == (0, 0, 0)


@pytest.mark.parallel([1, 2, 3, 4])
def test_evaluation_travels_in_float32_and_is_counted_apart(open_part, cut):
    comm = MPI.COMM_WORLD
    pieces = cut("undirected", comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner, UniformBits(1))
    opened.graph.begin_forward(0, 0, is_training=False)
    opened.graph.halo(rows_of(opened))
    num_values = len(opened.part.boundary_index) * DIM
    assert counts_of(opened.exchange.evaluation) == (4 * num_values, 0, num_values)
    assert counts_of(opened.exchange.training) == (0, 0, 0)


@pytest.mark.parallel([1, 2, 3, 4])
def test_long_messages_travel_in_pieces_and_arrive_whole(open_part, cut, counting_comm, monkeypatch):
    pieces = cut("undirected", counting_comm.size)
    opened = open_part(counting_comm, pieces.dataset, pieces.owner, UniformBits(8))
    counting_comm.sent.clear()
    whole = forward_and_backward(opened)
    sent_whole, counting_comm.sent = counting_comm.sent, []
    monkeypatch.setattr(transfer, "MAX_MESSAGE_BYTES", 100)
    in_pieces = forward_and_backward(opened)
    assert torch.equal(whole[0], in_pieces[0]) and torch.equal(whole[1], in_pieces[1])
    assert counting_comm.sent_bytes == sum(size for _, size in sent_whole)
    assert all(size <= 100 for _, size in counting_comm.sent)
    assert len(counting_comm.sent) == sum(-(-size // 100) for _, size in sent_whole)
    assert counting_comm.size == 1 or len(counting_comm.sent) > len(sent_whole)


@pytest.mark.parallel([1, 2, 3])
def test_rows_of_many_dims_reuse_one_arena(open_part, cut):
    """A narrow exchange after a wide one is not disturbed by what the wide one left in the buffers."""
    comm = MPI.COMM_WORLD
    pieces = cut("directed", comm.size)
    num_nodes = pieces.dataset.num_nodes
    opened = open_part(comm, pieces.dataset, pieces.owner, UniformBits(8))
    sent, received = [], []
    for dim in [3, 257, 1, 41, 257]:
        # At 8 bits, rows of 0 and 255 have codes that need no rounding.
        sent.append(255 * ((np.arange(num_nodes)[:, None] + np.arange(dim)) % 2).astype(np.float32))
        opened.graph.begin_forward(0, 0, is_training=True)
        received.append(opened.graph.halo(torch.from_numpy(sent[-1][opened.part.inner_id])))
    for rows, h_all in zip(sent, received, strict=True):
        np.testing.assert_array_equal(h_all.numpy(), rows[opened.node_id])


@pytest.mark.parallel([2, 3])
def test_a_traced_epoch_holds_its_own_exchanges_and_an_untraced_one_changes_nothing(open_part, cut):
    comm = MPI.COMM_WORLD
    pieces = cut("undirected", comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner, UniformBits(8))
    places = []
    for is_traced, num_layers in [(True, 2), (False, 3), (True, 1)]:
        opened.exchange.begin_epoch(EpochPlan(UniformBits(8), is_traced=is_traced))
        opened.graph.begin_forward(0, 0, is_training=True)
        for _ in range(num_layers):
            opened.graph.halo(rows_of(opened))
        places.append(set(opened.exchange.traces()))
    assert places == [{(0, FORWARD), (1, FORWARD)}, {(0, FORWARD), (1, FORWARD)}, {(0, FORWARD)}]


def test_take_returns_the_counts_and_starts_again():
    traffic = Traffic(1, 2, 3, 4.0, sent_by_peer={1: 7})
    taken = traffic.take()
    assert (taken.payload_bytes, taken.num_values, taken.exchange_seconds, taken.sent_by_peer) == (1, 3, 4.0, {1: 7})
    assert (traffic.payload_bytes, traffic.num_values, traffic.exchange_seconds) == (0, 0, 0.0)
    assert traffic.sent_by_peer == {}


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when it is told to."""
    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

    stopped = Clock()
    monkeypatch.setattr(traffic_module, "time", stopped)
    return stopped


def test_messages_that_travel_beside_each_other_count_once_and_are_hidden_where_nobody_waits(clock):
    traffic = Traffic()
    clock.now += 1          # nothing travels
    traffic.move(travelling=1)
    clock.now += 2          # hidden
    traffic.move(travelling=1)
    clock.now += 4          # hidden, two of them
    traffic.move(travelling=-1)
    with traffic.waiting():
        clock.now += 8      # travels, and is waited for
        traffic.move(travelling=-1)
        clock.now += 16     # waited for something else
    clock.now += 32
    taken = traffic.take()
    assert (taken.travel_seconds, taken.hidden_seconds, taken.blocked_seconds) == (14, 6, 24)


def test_what_is_on_its_way_goes_on_counting_in_the_next_epoch_but_not_between_them(clock):
    traffic = Traffic()
    traffic.move(travelling=1)
    clock.now += 3
    assert traffic.take().travel_seconds == 3
    clock.now += 100        # an evaluation
    traffic.restart_clock()
    clock.now += 5
    traffic.move(travelling=-1)
    clock.now += 7
    taken = traffic.take()
    assert (taken.travel_seconds, taken.hidden_seconds) == (5, 5)


@pytest.mark.parallel([1, 2, 3])
def test_sums_over_ranks_are_waiting_and_their_bytes_no_payload(open_part, cut):
    comm = MPI.COMM_WORLD
    pieces = cut("undirected", comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner)
    values = torch.arange(7, dtype=torch.float32)
    opened.exchange.sum_over_ranks(values)
    traffic = opened.exchange.training.take()
    assert values.tolist() == [comm.size * value for value in range(7)]
    assert traffic.sum_bytes == (0 if comm.size == 1 else 4 * 7)
    assert counts_of(traffic) == (0, 0, 0)
    assert (traffic.blocked_seconds > 0) == (comm.size > 1)
    assert traffic.exchange_seconds >= traffic.blocked_seconds
