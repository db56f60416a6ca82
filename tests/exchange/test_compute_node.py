"""Ranks that share the rows of their node: who is a gateway, what crosses, and the rows and gradients that arrive."""

import numpy as np
import pytest
import torch
from exchange.epochs import PIPELINED, Epochs
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.compute_node import ComputeNode, SharedMemory
from hpcgnn.exchange.kinds import Fresh
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import Reach
from hpcgnn.exchange.transfer import are_worth_it, split_nodes

NUM_HOPS = 3
SEVERAL = pytest.mark.parallel([1, 2, 3, 4])


@pytest.fixture(params=["one node", 2, 3])
def ranks_per_node(request):
    return MPI.COMM_WORLD.size if request.param == "one node" else request.param


def open_node(comm, part, ranks_per_node):
    """Collective: a rank's own plan, and what it shares."""
    plan = ExchangePlan.build(part)
    return plan, ComputeNode.build(comm, split_nodes(comm, ranks_per_node), plan)


def rows_read(pieces, rank):
    """(num_halo,) global ids of the rows that a rank reads."""
    return pieces.parts[rank].halo_id


@pytest.mark.covering
@SEVERAL
def test_each_row_crosses_once_to_a_node_that_reads_it_and_not_within_one(cut, shape, ranks_per_node):
    comm = MPI.COMM_WORLD
    pieces = cut(shape, comm.size)
    node_of = np.arange(comm.size) // ranks_per_node
    _, node = open_node(comm, pieces.parts[comm.rank], ranks_per_node)
    plans = comm.allgather(node.plan)
    for owner, sender in enumerate(plans):
        sent = {(node_of[peer], peer): rows.node_id for peer, rows in zip(sender.peers, sender.boundary, strict=True)
                if len(rows)}
        readers = {}
        for rank in range(comm.size):
            read = rows_read(pieces, rank)
            read = read[pieces.owner[read] == owner]
            if len(read) and node_of[rank] != node_of[owner]:
                readers.setdefault(node_of[rank], {})[rank] = set(read.tolist())
        assert sorted(number for number, _ in sent) == sorted(readers)      # one gateway a node that reads any
        for (number, gateway), node_id in sent.items():
            assert gateway in readers[number]
            assert node_id.tolist() == sorted(set.union(*readers[number].values()))
            place = plans[gateway].peers.index(owner)
            np.testing.assert_array_equal(plans[gateway].halo[place].node_id, node_id)
    assert sum(map(len, node.plan.halo)) == node.plan.num_halo


@pytest.mark.parallel([4])
def test_owners_take_different_gateways(cut):
    comm = MPI.COMM_WORLD
    _, node = open_node(comm, cut("undirected", comm.size).parts[comm.rank], 2)
    num_received = node.comm.allgather(node.plan.num_halo)
    assert min(num_received) > 0


@pytest.mark.covering
@SEVERAL
def test_halo_rows_are_their_owners_and_gradients_add_up_there(cut, shape, ranks_per_node):
    comm = MPI.COMM_WORLD
    algorithm = "alltoallv" if shape == "directed" else "ring"
    epochs = Epochs(comm, cut(shape, comm.size), Fresh, algorithm, ranks_per_node=ranks_per_node)
    for epoch in range(3):
        epochs.begin(epoch, UniformBits(32))
        rows = epochs.stamp(epoch, dim=3 + epoch)          # other widths take other memory
        halo, home = epochs.there_and_back(rows, rows)
        torch.testing.assert_close(halo, rows[epochs.num_inner:], rtol=0, atol=0)
        torch.testing.assert_close(home, rows[:epochs.num_inner] * epochs.copies, rtol=0, atol=0)


@SEVERAL
def test_rows_of_16_bits_are_shared_as_they_are(cut, ranks_per_node):
    comm = MPI.COMM_WORLD
    epochs = Epochs(comm, cut("directed", comm.size), Fresh, ranks_per_node=ranks_per_node)
    epochs.begin(0, UniformBits(16))
    rows = epochs.stamp(0).bfloat16()
    halo, home = epochs.there_and_back(rows, rows)
    torch.testing.assert_close(halo, rows[epochs.num_inner:], rtol=0, atol=0)
    torch.testing.assert_close(home, (rows[:epochs.num_inner].float() * epochs.copies).bfloat16(), rtol=0, atol=0)


@SEVERAL
def test_pipelined_rows_of_other_nodes_are_an_epoch_old_and_those_of_the_own_node_are_fresh(cut, ranks_per_node):
    comm = MPI.COMM_WORLD
    pieces = cut("directed", comm.size)
    epochs = Epochs(comm, pieces, PIPELINED, ranks_per_node=ranks_per_node)
    for epoch in range(3):
        epochs.begin(epoch, UniformBits(32), is_asynchronous=epoch > 0)
        halo, _ = epochs.there_and_back(epochs.stamp(epoch), epochs.stamp(epoch))
        is_near = pieces.owner[epochs.part.halo_id] // ranks_per_node == comm.rank // ranks_per_node
        old, new = (epochs.stamp(max(0, number))[epochs.num_inner:] for number in (epoch - 1, epoch))
        expected = torch.where(torch.from_numpy(is_near)[:, None], new, old)
        torch.testing.assert_close(halo, expected, rtol=0, atol=0)
    epochs.exchange.forget()


@pytest.mark.covering
@SEVERAL
def test_a_row_is_as_near_to_the_loss_as_through_its_nearest_reader(cut, shape, ranks_per_node):
    comm = MPI.COMM_WORLD
    pieces = cut(shape, comm.size)
    plan, node = open_node(comm, pieces.parts[comm.rank], ranks_per_node)
    own = Reach.measure(comm, pieces.parts[comm.rank], plan, NUM_HOPS)
    nearest = {}
    for ids, hops in node.comm.allgather((pieces.parts[comm.rank].halo_id, own.halo)):
        for node_id, hop in zip(ids.tolist(), hops.tolist(), strict=True):
            nearest[node_id] = min(hop, nearest.get(node_id, NUM_HOPS + 1))
    reach = node.reach(comm, own)
    received = np.concatenate([rows.node_id for rows in node.plan.halo])
    assert reach.halo.tolist() == [nearest[node_id] for node_id in received.tolist()]
    fewer = comm.allgather(reach.plan_within(node.plan, 1))
    for sender in fewer:
        for peer, rows in zip(sender.peers, sender.boundary, strict=True):
            listed = fewer[peer].halo[fewer[peer].peers.index(sender.rank)]
            np.testing.assert_array_equal(rows.node_id, listed.node_id)


@pytest.mark.covering
@SEVERAL
def test_numbers_follow_the_rows(cut, shape, ranks_per_node):
    comm = MPI.COMM_WORLD
    pieces = cut(shape, comm.size)
    epochs = Epochs(comm, pieces, Fresh, ranks_per_node=ranks_per_node)
    received = np.concatenate([rows.node_id for rows in epochs.plan.halo])
    found = epochs.exchange.received_values(epochs.part.inner_id.astype(np.float32))
    np.testing.assert_array_equal(found, np.concatenate([epochs.part.inner_id, received]))
    added = epochs.exchange.sent_home(np.full(epochs.part.num_halo, 1.0 + comm.rank, np.float32))
    first = comm.rank // ranks_per_node * ranks_per_node
    expected = [sum(1.0 + rank for rank in range(first, min(first + ranks_per_node, comm.size))
                    if node_id in rows_read(pieces, rank)) for node_id in received]
    assert added.tolist() == expected


@SEVERAL
def test_sharing_is_worth_it_where_there_are_several_nodes_and_several_ranks_in_one():
    comm = MPI.COMM_WORLD
    answers = [are_worth_it(comm, split_nodes(comm, number)) for number in (0, 1, 2, 3)]
    assert answers == [False, False, comm.size > 2, comm.size > 3]


@SEVERAL
def test_memory_is_the_same_on_all_ranks_and_its_halves_are_apart():
    comm = MPI.COMM_WORLD
    memory = SharedMemory(comm)
    for num_rows in (3, 1000):
        for half in (0, 1):
            memory.rows(half, (num_rows, 5), torch.float32)[comm.rank::comm.size] = 10.0 * half + num_rows
        comm.Barrier()
        for half in (0, 1):
            assert (memory.rows(half, (num_rows, 5), torch.float32) == 10.0 * half + num_rows).all()
        comm.Barrier()
    assert memory.num_bytes >= 2 * 1000 * 5 * 4
    memory.release()
    assert memory.num_bytes == 0


@SEVERAL
def test_memory_that_the_system_refuses_is_an_error_on_all_ranks(monkeypatch):
    comm = MPI.COMM_WORLD

    def refuse(file, length):
        raise OSError(28, "No space left")

    if comm.rank == 0:
        monkeypatch.setattr("os.ftruncate", refuse)
    with pytest.raises(KernelError, match=r"No space left.*nodes_aware=off"):
        SharedMemory(comm).rows(0, (10, 10), torch.float32)


@SEVERAL
def test_rows_that_change_while_they_are_fetched_arrive_as_they_were(cut, ranks_per_node):
    """As those of a layer that masks its rows where they lie."""
    comm = MPI.COMM_WORLD
    epochs = Epochs(comm, cut("undirected", comm.size), Fresh, ranks_per_node=ranks_per_node)
    epochs.begin(0, UniformBits(32))
    rows, halo = epochs.stamp(0), torch.empty(epochs.part.num_halo, 5)
    h = rows[:epochs.num_inner].clone()
    arrival = epochs.exchange.start_fetch(h, epochs.graph.next_site())
    h.zero_()
    arrival.finish(halo)
    torch.testing.assert_close(halo, rows[epochs.num_inner:], rtol=0, atol=0)
