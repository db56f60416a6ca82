"""Bytes of every size between ranks, and the arena that they lie in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange import transfer
from hpcgnn.exchange.codec import ALIGNMENT, MessageArena
from hpcgnn.exchange.plan import ring_rounds
from hpcgnn.exchange.transfer import EXCHANGES, AlltoallvTransfer, HostDelivery
from hpcgnn.ops.arena import empty


def size_between(source, destination):
    """Bytes of a message, the same on both sides; some pairs have none."""
    return 0 if source == destination or (source + destination) % 3 == 0 else 37 * (1 + source) + destination


def bytes_between(source, destination):
    rng = np.random.default_rng((source, destination))
    return rng.integers(0, 256, size_between(source, destination)).astype(np.uint8)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("algorithm", list(EXCHANGES))
@pytest.mark.parametrize("max_bytes", [1 << 30, 64, 1])
def test_every_message_arrives_at_its_peer(monkeypatch, algorithm, max_bytes):
    monkeypatch.setattr(transfer, "MAX_MESSAGE_BYTES", max_bytes)
    comm, arena = MPI.COMM_WORLD, MessageArena()
    ranks = range(comm.size)
    send, receive = arena.slices([size_between(comm.rank, q) for q in ranks],
                                 [size_between(q, comm.rank) for q in ranks])
    for peer in ranks:
        send[peer][:] = bytes_between(comm.rank, peer)
    sent = EXCHANGES[algorithm](HostDelivery(comm, ranks, send, receive, tag=9),
                                    ring_rounds(comm.rank, comm.size, ranks))
    sent.wait()
    assert sent.sent_bytes == sum(size_between(comm.rank, q) for q in ranks)
    for peer in ranks:
        np.testing.assert_array_equal(receive[peer], bytes_between(peer, comm.rank))


def test_slices_are_aligned_disjoint_and_reused():
    arena = MessageArena()
    sizes = [3, 0, 64, 65]
    send, receive = arena.slices(sizes, sizes[::-1])
    starts = [view.ctypes.data - send[0].ctypes.data for view in send if len(view)]
    assert [len(view) for view in send] == sizes and [len(view) for view in receive] == sizes[::-1]
    assert starts == [0, ALIGNMENT, 2 * ALIGNMENT]
    smaller, smaller_received = arena.slices([1, 1], [1, 1])
    assert smaller[0].ctypes.data == send[0].ctypes.data and smaller[0].base is send[0].base
    assert smaller_received[0].base is receive[0].base
    larger, _ = arena.slices([1000], [0])
    assert len(larger[0]) == 1000 and larger[0].base is not send[0].base


def test_the_memory_of_passing_messages_serves_what_comes_next():
    arena = MessageArena(is_passing=True)
    sizes = [3, 0, 64, 65]
    send, receive = arena.slices(sizes, sizes[::-1])
    starts = [view.ctypes.data - send[0].ctypes.data for view in send if len(view)]
    assert [len(view) for view in send] == sizes and [len(view) for view in receive] == sizes[::-1]
    assert starts == [0, ALIGNMENT, 2 * ALIGNMENT]
    assert arena.num_bytes == 2 * (2 * ALIGNMENT + 2 * ALIGNMENT)
    large, _ = arena.slices([1 << 20], [0])
    assert len(large[0]) == 1 << 20
    large[0][:] = 7
    small, _ = arena.slices([1], [1])
    assert len(small[0]) == 1 and arena.num_bytes == 2 * ALIGNMENT
    assert (large[0] == 7).all()                  # still whole, as long as somebody reads it
    start = large[0].ctypes.data
    del large
    assert empty((1 << 20,), torch.uint8).data_ptr() == start


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("algorithm", list(EXCHANGES))
def test_what_was_sent_gives_its_memory_back_once_all_has_arrived(algorithm):
    comm, arena = MPI.COMM_WORLD, MessageArena(is_passing=True)
    ranks, sizes = range(comm.size), [1 << 20] * comm.size
    send, receive = arena.slices(sizes, sizes)
    start, num_bytes = send[0].ctypes.data, arena.num_bytes
    sent = EXCHANGES[algorithm](HostDelivery(comm, ranks, send, receive, tag=9),
                                    ring_rounds(comm.rank, comm.size, ranks))
    del send
    sent.wait()
    assert empty((sum(sizes),), torch.uint8).data_ptr() == start
    assert arena.num_bytes == num_bytes == 2 * sum(sizes)


def test_alltoallv_refuses_what_its_counts_cannot_name():
    huge = [np.broadcast_to(np.uint8(0), (1 << 31,))]
    with pytest.raises(KernelError, match="use --set exchange=ring"):
        AlltoallvTransfer(HostDelivery(MPI.COMM_SELF, (0,), huge, [np.empty(1, np.uint8)[:0]], 0), ((0, 0),))
