"""Halo rows and their gradients on 1 to 4 ranks, bit for bit those that the oracle derives from the whole matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from exchange.epochs import Epochs
from mpi4py import MPI
from reference import BACKWARD, FORWARD, draws_of, round_trip_each, stream_of

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.codec import Codec
from hpcgnn.exchange.kinds.kept import Kept
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.aggregation import multiply
from hpcgnn.widths import BIT_WIDTHS

SEED, EPOCH = 5, 12
DIMS = [1, 7, 41, 128]


@dataclass(frozen=True)
class MixedBits:
    """Widths that depend on everything that a plan may know."""

    def widths(self, layer, purpose, source, destination, rows):
        return np.array(BIT_WIDTHS, np.uint8)[(np.arange(len(rows)) + layer + purpose + 2 * source + destination) % 6]


PLANS = {"1": UniformBits(1), "8": UniformBits(8), "16": UniformBits(16), "1 to 32": MixedBits()}


def values_of(num_rows, dim, seed):
    rng = np.random.default_rng((seed, dim))
    return (3 + rng.normal(size=(num_rows, dim)) * rng.uniform(1e-3, 10, (num_rows, 1))).astype(np.float32)


def received_rows(bit_plan, rows, node_id, source, destination, layer, purpose):
    """What `destination` holds of the rows that `source` sent."""
    width = bit_plan.widths(layer, purpose, source, destination, rows)
    stream = stream_of(purpose, layer, source if purpose == BACKWARD else 0)
    return round_trip_each(rows, width, draws_of(node_id, rows.shape[1], SEED, EPOCH, stream))


def expected_rows(pieces, bit_plan, h, rank, layer):
    """Inner rows, then halo rows as their owners' messages leave them."""
    part = pieces.parts[rank]
    parts = [h[part.inner_id]]
    for owner in range(part.num_parts):
        node_id = part.halo_id[part.halo_offset[owner]:part.halo_offset[owner + 1]]
        parts.append(received_rows(bit_plan, h[node_id], node_id, owner, rank, layer, FORWARD))
    return np.concatenate(parts)


def expected_gradient(pieces, bit_plan, gradients, rank, layer):
    """Own gradients of inner rows plus those of all their halo copies, added in the order of the ranks."""
    part = pieces.parts[rank]
    row_of = {int(v): i for i, v in enumerate(part.inner_id)}
    total = gradients[rank][:part.num_inner].copy()
    for peer, other in enumerate(pieces.parts):
        low, high = other.halo_offset[rank], other.halo_offset[rank + 1]
        node_id, rows = other.halo_id[low:high], gradients[peer][other.num_inner + low:other.num_inner + high]
        total[[row_of[int(v)] for v in node_id]] += received_rows(bit_plan, rows, node_id, peer, rank, layer, BACKWARD)
    return total


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("bits", list(PLANS))
def test_halo_rows_and_gradients_equal_the_oracle(open_part, cut, shape, bits):
    comm, bit_plan = MPI.COMM_WORLD, PLANS[bits]
    pieces = cut(shape, comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner, bit_plan)
    opened.graph.begin_forward(SEED, EPOCH, is_training=True)
    forward, backward = [], []
    for dim in DIMS:
        h = torch.from_numpy(values_of(pieces.dataset.num_nodes, dim, 0)[opened.part.inner_id]).requires_grad_()
        h_all = opened.graph.halo(h)
        h_all.backward(torch.from_numpy(values_of(len(h_all), dim, 1 + comm.rank)))
        forward.append(h_all.detach().numpy())
        backward.append(h.grad.numpy())
    for layer, dim in enumerate(DIMS):
        h = values_of(pieces.dataset.num_nodes, dim, 0)
        gradients = [values_of(len(part.inner_id) + len(part.halo_id), dim, 1 + q)
                     for q, part in enumerate(pieces.parts)]
        np.testing.assert_array_equal(forward[layer], expected_rows(pieces, bit_plan, h, comm.rank, layer))
        np.testing.assert_array_equal(backward[layer],
                                      expected_gradient(pieces, bit_plan, gradients, comm.rank, layer))


@pytest.mark.parallel([1, 2, 3, 4])
def test_at_32_bits_halo_rows_are_their_owners_rows(open_part, cut, shape):
    comm = MPI.COMM_WORLD
    pieces = cut(shape, comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner)
    h = values_of(pieces.dataset.num_nodes, 33, 0)
    for is_training in (True, False):
        opened.graph.begin_forward(SEED, EPOCH, is_training)
        h_all = opened.graph.halo(torch.from_numpy(h[opened.part.inner_id]))
        np.testing.assert_array_equal(h_all.numpy(), h[opened.node_id])
    np.testing.assert_array_equal(opened.graph.x_all.numpy(), pieces.dataset.features[opened.node_id])


@pytest.mark.parallel([1, 2, 3, 4])
def test_gradient_of_a_global_sum_is_that_of_one_process(open_part, cut, shape):
    """Loss = sum over ranks of w[v] . (A h)[v]; its gradient at every owner is A^T w of the whole graph."""
    comm = MPI.COMM_WORLD
    pieces = cut(shape, comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner)
    num_nodes, dataset, inner_id = pieces.dataset.num_nodes, pieces.dataset, opened.part.inner_id
    h, w = values_of(num_nodes, 9, 0), values_of(num_nodes, 9, 1)
    leaf = torch.from_numpy(h[inner_id]).requires_grad_()
    opened.graph.begin_forward(SEED, EPOCH, is_training=True)
    (opened.graph.aggregate(opened.graph.halo(leaf), "sum") * torch.from_numpy(w[inner_id])).sum().backward()
    expected = np.zeros((num_nodes, 9))
    targets = np.repeat(np.arange(num_nodes), dataset.in_degree())
    np.add.at(expected, dataset.indices, w[targets].astype(np.float64))
    np.testing.assert_allclose(leaf.grad.numpy(), expected[inner_id], rtol=1e-5, atol=1e-5)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_sums_over_packed_rows_are_those_over_written_ones(open_part, cut, bits):
    comm = MPI.COMM_WORLD
    pieces = cut("undirected", comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner, UniformBits(bits))
    h = torch.from_numpy(values_of(pieces.dataset.num_nodes, 41, 0)[opened.part.inner_id])
    matrix, site = opened.graph.hop("sum").matrices.forward, ExchangeSite(0, SEED, EPOCH, is_training=True)
    far = torch.zeros(opened.plan.num_halo, 41)
    opened.exchange.start_fetch(h, site).finish(far)
    packed = opened.exchange.start_fetch(h, site).packed()
    np.testing.assert_allclose(multiply(matrix, h, packed), multiply(matrix, h, far), rtol=1e-4, atol=1e-4)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("dtype, bits", [(torch.float32, 32), (torch.bfloat16, 16), (torch.float16, 16)])
@pytest.mark.parametrize("dim", [32, 41])
def test_rows_lie_in_messages_as_they_would_be_written(open_part, cut, shape, dtype, bits, dim):
    """Wherever all rows come in their order and nothing lies between messages, which begin on cache lines."""
    comm = MPI.COMM_WORLD
    pieces = cut(shape, comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner, UniformBits(bits))
    num_halo, site = opened.plan.num_halo, ExchangeSite(0, SEED, EPOCH, is_training=True)
    h = torch.from_numpy(values_of(pieces.dataset.num_nodes, dim, 0)[opened.part.inner_id]).to(dtype)
    written = torch.zeros(num_halo, dim, dtype=dtype)
    opened.exchange.start_fetch(h, site).finish(written)

    def in_message(sent):
        arrival = opened.exchange.start_fetch(sent, site)
        rows = arrival.rows_in_message(dtype)
        if rows is None:
            arrival.finish(torch.zeros(num_halo, dim, dtype=dtype))
        return rows

    found = in_message(h)
    sizes = [dim * dtype.itemsize * len(rows) for rows in opened.plan.halo]
    last = max((place for place, size in enumerate(sizes) if size), default=0)
    assert (found is not None) == (num_halo > 0 and all(size % 64 == 0 for size in sizes[:last]))
    kept = None if found is None else found.clone()
    again = in_message(h + 1)
    if found is not None:
        for rows in (kept, found):      # the next exchange leaves them as they are
            np.testing.assert_array_equal(rows.float(), written.float())
        assert not torch.equal(again, found)


@pytest.mark.parallel([2, 3])
def test_some_of_the_rows_are_no_table_of_all(open_part, cut):
    """What a pass leaves out keeps its place among the halo rows, though not in a message."""
    comm = MPI.COMM_WORLD
    pieces = cut("undirected", comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner)
    comes = np.arange(opened.plan.num_halo) < opened.plan.num_halo - 1
    some = opened.plan.restricted(tuple(np.ones(len(rows), bool) for rows in opened.plan.boundary), comes)
    whole, cut_short = (Codec(plan, UniformBits(32)).messages(0, FORWARD, 32) for plan in (opened.plan, some))
    assert whole.is_table_of(32) and not whole.is_table_of(16) and not cut_short.is_table_of(32)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("bits", ["1", "16", "1 to 32"])
def test_rows_of_other_types_lie_in_no_message(open_part, cut, bits):
    """Codes, and float32 rows that came as bfloat16."""
    comm = MPI.COMM_WORLD
    pieces = cut("undirected", comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner, PLANS[bits])
    h = torch.from_numpy(values_of(pieces.dataset.num_nodes, 32, 0)[opened.part.inner_id])
    arrival = opened.exchange.start_fetch(h, ExchangeSite(0, SEED, EPOCH, is_training=True))
    assert arrival.rows_in_message(torch.float32) is None
    rows = torch.full((opened.plan.num_halo, 32), torch.nan)
    arrival.finish(rows)
    assert torch.isfinite(rows).all()


@pytest.mark.parallel([2, 3])
def test_rows_that_a_later_epoch_may_read_lie_in_no_message_to_be_changed(cut):
    """A synchronous epoch's rows are read again by the asynchronous one behind it."""
    epochs = Epochs(MPI.COMM_WORLD, cut("undirected", MPI.COMM_WORLD.size), Kept)
    epochs.begin(0, UniformBits(32), is_asynchronous=False)
    h = torch.ones(epochs.graph.num_inner, 32)
    arrival = epochs.exchange.start_fetch(h, ExchangeSite(0, SEED, 0, is_training=True))
    assert arrival.rows_in_message(torch.float32) is None
    arrival.finish(torch.zeros(epochs.graph.num_halo, 32))
    epochs.exchange.forget()


@pytest.mark.parallel([2, 3])
def test_scaled_gradients_that_overflow_arrive_as_nan(open_part, cut):
    comm = MPI.COMM_WORLD
    pieces = cut("undirected", comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner, UniformBits(2))
    gradient = torch.ones(opened.plan.num_halo, 5, dtype=torch.float16)
    if comm.rank == 0:
        gradient[-1, -1] = torch.inf
    total = torch.zeros(opened.plan.num_inner, 5, dtype=torch.float16)
    opened.exchange.start_take_home(gradient, ExchangeSite(1, 0, 0, is_training=True)).finish(total)
    of_zero = torch.from_numpy(opened.plan.boundary[0].index).long()
    assert comm.rank == 0 or (len(of_zero) and torch.isnan(total[of_zero]).all())


@pytest.mark.parallel([1, 2, 3, 4])
def test_the_same_key_rounds_alike_and_another_epoch_does_not(open_part, cut):
    comm = MPI.COMM_WORLD
    pieces = cut("undirected", comm.size)
    opened = open_part(comm, pieces.dataset, pieces.owner, UniformBits(2))
    h = torch.from_numpy(values_of(pieces.dataset.num_nodes, 50, 0)[opened.part.inner_id])
    received = []
    for seed, epoch in [(1, 1), (1, 1), (1, 2), (2, 1)]:
        opened.graph.begin_forward(seed, epoch, is_training=True)
        received.append(opened.graph.halo(h))
    assert torch.equal(received[0], received[1])
    assert comm.size == 1 or not torch.equal(received[0], received[2])
    assert comm.size == 1 or not torch.equal(received[0], received[3])
