"""Messages of a device reach their peers through pinned memory or by pointers, and MPI never meets unfinished work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from mpi4py import MPI
from stand_in_device import DeviceFault, StandInDevice, WatchedComm, use_host_kernels

from hpcgnn.errors import KernelError
from hpcgnn.exchange import device_transport
from hpcgnn.exchange.bits import EpochPlan, UniformBits
from hpcgnn.exchange.codec import MessageArena
from hpcgnn.exchange.device_transport import CudaAwareTransport, StagedTransport
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.kinds import Kept
from hpcgnn.exchange.plan import ExchangePlan, ring_rounds
from hpcgnn.exchange.sender import Wire
from hpcgnn.exchange.transfer import EXCHANGES, HOST
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.counter import BACKWARD
from hpcgnn.ops.streams import use_streams

TRANSPORTS = {"staged": StagedTransport, "cuda-aware": CudaAwareTransport}
CPU = torch.device("cpu")


@pytest.fixture
def stand_in():
    """A stand-in device, whose streams are in use."""
    device = StandInDevice()
    with use_streams(device):
        yield device


@pytest.fixture(params=list(TRANSPORTS))
def transport(request, stand_in):
    return TRANSPORTS[request.param](CPU)


@pytest.fixture
def comm(stand_in):
    """Collective: a communicator of its own, since what a failed exchange has posted must meet no other's messages."""
    return WatchedComm(MPI.COMM_WORLD.Dup(), stand_in)


def size_between(source, destination, turn=0):
    """Bytes of a message, the same on both sides; some pairs have none."""
    return 0 if source == destination or (source + destination + turn) % 4 == 3 else 237 * (1 + source) + destination


def bytes_between(source, destination, turn=0):
    rng = np.random.default_rng((source, destination, turn))
    return torch.from_numpy(rng.integers(0, 256, size_between(source, destination, turn)).astype(np.uint8))


def start(comm, arena, stream, algorithm, turn=0, is_open=False):
    """Collective: one exchange whose encoding kernels have written known bytes."""
    ranks = range(comm.size)
    send, receive = arena.slices([size_between(comm.rank, q, turn) for q in ranks],
                                 [size_between(q, comm.rank, turn) for q in ranks])
    with stream.after_computing():
        for peer in ranks:
            send[peer].copy_(bytes_between(comm.rank, peer, turn))
        delivery = arena.transport.deliver(comm, ranks, send, receive, 9, arena.staging, None, is_open)
    rounds = ring_rounds(comm.rank, comm.size, ranks)
    return EXCHANGES[algorithm](delivery, rounds, is_open=is_open), receive


def assert_arrived(comm, stream, receive, turn=0):
    with stream.after_computing():     # as the decoding kernels come
        for peer in range(comm.size):
            assert torch.equal(receive[peer], bytes_between(peer, comm.rank, turn)), peer


@pytest.mark.covering(3)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("piece_bytes", [1 << 20, 100, 23])
@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("algorithm, is_open", [("ring", False), ("ring", True), ("alltoallv", False)])
def test_every_message_arrives_in_every_exchange(monkeypatch, stand_in, comm, transport, algorithm, is_open, polls,
                                                 piece_bytes):
    monkeypatch.setattr(device_transport, "PIECE_BYTES", piece_bytes)
    arena = MessageArena(transport)
    for turn in range(3):
        transfer, receive = start(comm, arena, stand_in.message, algorithm, turn, is_open)
        while polls and not transfer.poll():
            pass
        transfer.wait()
        assert_arrived(comm, stand_in.message, receive, turn)
        stand_in.check_arrived()
        assert stand_in.in_flight == []


@pytest.mark.parallel([2, 3])
def test_open_exchanges_travel_while_nobody_looks(stand_in, comm, transport):
    """Two are under way at once, and finished in the order in which they were started."""
    started = [start(comm, MessageArena(transport), stand_in.message, "ring", turn, is_open=True) for turn in range(2)]
    sizes = [size_between(comm.rank, peer, turn) for turn in range(2) for peer in range(comm.size)]
    assert sum(size for event, size in stand_in.log if event == "send") == sum(sizes)
    for turn, (transfer, receive) in enumerate(started):
        transfer.wait()
        assert_arrived(comm, stand_in.message, receive, turn)


@pytest.mark.parallel([2, 3])
def test_a_piece_is_copied_while_the_one_before_travels(monkeypatch, stand_in, comm):
    monkeypatch.setattr(device_transport, "PIECE_BYTES", 50)
    transport = StagedTransport(CPU)
    transfer, _ = start(comm, MessageArena(transport), stand_in.message, "ring")
    transfer.wait()
    events = [event for event, _ in stand_in.log if event in ("send", "copy")]
    # Two copies are queued before the first piece leaves, so one is always ahead of the wire.
    assert events[:2] == ["copy", "copy"] and events.count("send") > 4
    slots = [memory for memory, _ in stand_in.pinned_ranges if len(memory)]
    assert len(slots) == 4     # two each way, for all pieces of all rounds


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("name", list(TRANSPORTS))
def test_a_wait_that_is_left_out_is_noticed(monkeypatch, stand_in, comm, name):
    """The stand-in is an oracle only if it sees what it is made for."""
    class Hasty:
        query = synchronize = staticmethod(lambda: True)

    transport = TRANSPORTS[name](CPU)
    monkeypatch.setattr(type(stand_in.message), "mark", lambda stream: Hasty())
    with pytest.raises(DeviceFault, match="MPI was given memory that"):
        start(comm, MessageArena(transport), stand_in.message, "ring", is_open=True)


@pytest.mark.parallel([1, 2, 3])
def test_sums_over_ranks_are_those_of_the_host(stand_in, comm, transport):
    values = np.random.default_rng(comm.rank).normal(size=(7, 143)).astype(np.float32)
    on_host, on_device = torch.from_numpy(values.copy()), torch.from_numpy(values.copy())
    HOST.sum_over_ranks(MPI.COMM_WORLD, on_host)
    for _ in range(2):
        on_device.copy_(torch.from_numpy(values))
        transport.sum_over_ranks(comm, on_device)
        assert torch.equal(on_device, on_host)


def exchange_of(comm, pieces, transport, bits, kind=None):
    return HaloExchange(comm, ExchangePlan.build(pieces.parts[comm.rank]), UniformBits(bits), Wire(transport=transport),
                        kind=kind)


@pytest.mark.parallel([2, 3])
def test_rows_of_the_epoch_before_outlive_the_arrival_of_this_epochs(monkeypatch, stand_in, comm, transport, cut):
    """A device keeps its buffers, so the messages of two epochs take turns in two of them."""
    use_host_kernels(monkeypatch)
    pieces = cut("undirected", comm.size)
    exchange, part = exchange_of(comm, pieces, transport, 8, Kept()), pieces.parts[comm.rank]
    of_nodes = torch.arange(pieces.dataset.num_nodes)[:, None] % 7 + torch.arange(5)
    for epoch in range(5):
        exchange.begin_epoch(EpochPlan(UniformBits(8), is_asynchronous=epoch > 0))
        arrival = exchange.start_fetch((of_nodes + 10 * epoch).float()[torch.from_numpy(part.inner_id)],
                                       ExchangeSite(0, 0, epoch, is_training=True))
        exchange.state()     # waits for the messages of this epoch, too
        halo = torch.empty(len(part.halo_id), 5)
        arrival.finish(halo)
        expected = (of_nodes + 10 * max(epoch - 1, 0)).float()[torch.from_numpy(part.halo_id)]
        torch.testing.assert_close(halo, expected, rtol=0, atol=0.1)     # two neighboring codes are 4 / 255 apart
    exchange.forget()


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("bits", [2, 8])
def test_a_row_that_cant_be_quantized_is_refused_when_its_message_is_posted(monkeypatch, stand_in, comm, transport, cut,
                                                                            bits):
    use_host_kernels(monkeypatch)
    pieces = cut("undirected", comm.size)
    exchange = exchange_of(comm, pieces, transport, bits)
    rows = torch.zeros(pieces.parts[comm.rank].num_inner, 3)
    bad = pieces.parts[comm.rank].boundary_index[-1]
    rows[bad] = torch.inf
    arrival = exchange.start_fetch(rows, ExchangeSite(0, 0, 0, is_training=True))
    with pytest.raises(KernelError, match=f"row of node {pieces.parts[comm.rank].inner_id[bad]} "):
        arrival.wait()
    comm.Barrier()


@pytest.mark.parallel([2, 3])
def test_scaled_gradients_that_overflow_arrive_as_nan_without_a_wait(monkeypatch, stand_in, comm, transport, cut):
    use_host_kernels(monkeypatch)
    pieces = cut("undirected", comm.size)
    exchange, part = exchange_of(comm, pieces, transport, 2), pieces.parts[comm.rank]
    gradient = torch.ones(len(part.halo_id), 5, dtype=torch.float16)
    if comm.rank == 0:
        gradient[-1, -1] = torch.inf
    arrival = exchange.start_take_home(gradient, ExchangeSite(1, 0, 0, is_training=True))
    assert ("synchronize", 1) not in stand_in.log
    total = torch.zeros(part.num_inner, 5, dtype=torch.float16)
    arrival.finish(total)
    plan = exchange._plan
    of_zero = plan.boundary[0].index
    assert comm.rank == 0 or (len(of_zero) and torch.isnan(total[torch.from_numpy(of_zero).long()]).all())
    of_others = np.setdiff1d(np.concatenate([rows.index for rows in plan.boundary[1:]]), of_zero)
    assert torch.isfinite(total[torch.from_numpy(of_others).long()]).all()


@pytest.mark.parallel([1, 2, 3])
def test_traced_ranges_are_the_hosts(monkeypatch, stand_in, comm, transport, cut):
    pieces = cut("directed", comm.size)
    part = pieces.parts[comm.rank]
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(pieces.dataset.num_nodes, 6)).astype(np.float32))
    on_host = exchange_of(MPI.COMM_WORLD, pieces, HOST, 4)
    traced(on_host, 2 * rows, part)     # of which the next traced epoch knows nothing
    traces = [traced(on_host, rows, part)]
    use_host_kernels(monkeypatch)
    traces.append(traced(exchange_of(comm, pieces, transport, 4), rows, part))
    assert list(traces[0]) == list(traces[1]) and len(traces[0]) == 2
    for place, name in itertools.product(traces[0], ("position", "row_range")):
        for ours, theirs in zip(getattr(traces[1][place], name), getattr(traces[0][place], name), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def traced(exchange, rows, part):
    """Collective: the ranges that one exchange each way leaves."""
    exchange.begin_epoch(EpochPlan(UniformBits(4), is_traced=True))
    site = ExchangeSite(0, 0, 0, is_training=True)
    exchange.start_fetch(rows[torch.from_numpy(part.inner_id)], site).finish(torch.empty(len(part.halo_id), 6))
    exchange.start_take_home(rows[torch.from_numpy(part.halo_id)], site).finish(torch.zeros(part.num_inner, 6))
    assert {purpose for _, purpose in exchange.traces()} == {1, BACKWARD}
    return exchange.traces()
