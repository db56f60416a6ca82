"""Transfers: move the packed messages of one exchange through MPI, by rounds of a ring or by one Alltoallv.

In round i every rank sends to rank + i and receives from rank - i, so each link carries one message at a time; the next
round is posted when the last one has arrived. MPI makes progress only while it is called, so whoever computes meanwhile
calls `poll` between blocks of rows. A transfer decides when a round begins; its delivery posts the sends and receives:
`HostDelivery` from host memory, those of `device_transport.py` from a device. A transport makes the buffers and the
delivery. `time_rounds` measures the rounds, from which cost models are fitted; `swap` exchanges arrays at the start.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.plan import Rounds
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.ops.quantization import Buffer
from hpcgnn.ops.streams import HOST_STREAMS, Streams
from hpcgnn.run.watchdog import HERE

MAX_MESSAGE_BYTES = 1 << 30    # longer messages travel as several, below MPI's 32-bit counts
SIZES = (1 << 12, 1 << 16, 1 << 19)     # bytes
REPETITIONS = 3
MAX_ROUNDS = 64                         # timed; with more ranks an even selection of the rounds
TIMING_TAG = 32001
MAX_TAG = 32767    # the least upper bound of tags that MPI grants
SWAP_TAG = 32000    # no exchange has this tag


class Posting(Protocol):
    """The messages of one exchange between their buffers and MPI, posted round by round."""

    comm: MPI.Comm
    peers: Sequence[int]       # ranks of the buffers
    tag: int                   # equal on all ranks for one exchange
    sent_bytes: int
    is_read_later: bool        # whether queued kernels may still read what was sent when all has arrived
    received_bytes: int

    def post(self, destination: int, source: int) -> None:
        """Begin a round: send to the peer of index `destination`, receive from the peer of index `source`."""

    def poll(self) -> bool:
        """Make progress; whether all that was begun has arrived."""

    def wait(self) -> None:
        """Return when all that was begun has arrived."""


class Delivery(Posting, Protocol):
    """Messages that can also be posted at once."""

    def post_all(self) -> None:
        """Collective: exchange all messages in one MPI_Alltoallv; KernelError if a rank's exceed 2 GiB."""


class HostDelivery:
    """Messages in memory that MPI takes; uint8 buffers, one per peer, must not be touched before arrival.

    send, receive : of (num_bytes,) arrays, or of MPI.buffer, which `post_all` does not take
    """

    is_read_later = False

    def __init__(self, comm: MPI.Comm, peers: Sequence[int], send: list[Any], receive: list[Any], tag: int):
        self.comm, self.peers, self.tag, self.send, self.receive = comm, peers, tag, send, receive
        self.sent_bytes, self.received_bytes = sum(map(len, send)), sum(map(len, receive))
        self._requests: list[MPI.Request] = []     # of what was begun since all had arrived

    def post(self, destination: int, source: int) -> None:
        for post, message, peer in ((self.comm.Irecv, self.receive[source], self.peers[source]),
                                    (self.comm.Isend, self.send[destination], self.peers[destination])):
            for start in range(0, len(message), MAX_MESSAGE_BYTES):
                self._requests.append(post([message[start:start + MAX_MESSAGE_BYTES], MPI.BYTE], peer, self.tag))

    def post_all(self) -> None:
        all_to_all(self.comm, self.peers, _block(self.send), _block(self.receive))

    def poll(self) -> bool:
        if self._requests and MPI.Request.Testall(self._requests):
            self._requests.clear()
        return not self._requests

    def wait(self) -> None:
        MPI.Request.Waitall(self._requests)
        self._requests.clear()


class Checks(Protocol):
    """What a device says about the rows that it encoded; see `hpcgnn.exchange.device_transport.RowChecks`."""

    def read(self) -> None:
        """Raise KernelError if a row could not be quantized; the device has passed the kernels."""


class Transport(Protocol):
    """Carry one rank's bytes to the others.

    name : {"host", "cuda-aware", "staged"}
    """

    @property
    def name(self) -> str: ...

    @property
    def streams(self) -> Streams: ...

    def empty(self, num_bytes: int) -> Buffer:
        """Return (num_bytes,) uint8, uninitialized, on the rows' device."""

    def new_staging(self) -> Any:
        """Return memory through which an arena's messages pass, if any."""

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[Buffer], receive: list[Buffer], tag: int,
                staging: Any, checks: Checks | None = None, is_open: bool = False) -> Delivery:
        """Return the delivery of one exchange. It sends after the encoding kernels queued on the message stream.

        send, receive : list of uint8 buffers of an arena, one per peer, not to be touched before arrival
        tag : int                  equal on all ranks for one exchange
        staging : what `new_staging` returned
        checks : Checks or None    of the sent rows
        is_open : bool             whether nobody polls, so that it must be posted at once
        """

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        """Collective: replace contiguous float32 values by their sums."""


class HostTransport:
    """MPI takes the host's buffers."""

    name, streams = "host", HOST_STREAMS

    def empty(self, num_bytes: int) -> np.ndarray:
        return np.empty(num_bytes, np.uint8)

    def new_staging(self) -> None:
        pass

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[Any], receive: list[Any], tag: int,
                staging: Any, checks: Checks | None = None, is_open: bool = False) -> HostDelivery:
        return HostDelivery(comm, peers, send, receive, tag)

    def sum_over_ranks(self, comm: MPI.Comm, values: torch.Tensor) -> None:
        comm.Allreduce(MPI.IN_PLACE, values.numpy(), MPI.SUM)


HOST = HostTransport()


class Transfer:
    """Messages of one exchange on their way. All ranks post the same exchanges in the same order.

    Parameters
    ----------
    delivery : Posting
    rounds : (destination, source) of each round, as indices into the delivery's peers
    link : Link or None
    traffic : Traffic or None    counts the seconds
    is_open : bool               post all rounds at once, for messages that nobody polls
    name_of : function           name of the exchange with a tag, for reports of where a rank waits
    """

    def __init__(self, delivery: Posting, rounds: Rounds, link: Link | None = None, traffic: Traffic | None = None,
                 is_open: bool = False, name_of: Callable[[int], str] = "exchange {}".format):
        self._delivery: Posting | None = delivery
        self.sent_bytes, self._name_of, self._traffic = delivery.sent_bytes, name_of, traffic or Traffic()
        self._rounds, self._num_rounds = deque(rounds), len(rounds)
        self._partners = rounds[-1] if rounds else (0, 0)
        self._has_arrived, is_first = False, True
        self._traffic.move(travelling=1)
        started = time.perf_counter()
        self._due = 0.0 if link is None else link.reserve(max(self.sent_bytes, delivery.received_bytes))
        while self._rounds and (is_open or is_first or delivery.poll()):
            self._partners, is_first = self._rounds.popleft(), False
            delivery.post(*self._partners)
        self._traffic.exchange_seconds += time.perf_counter() - started

    def poll(self) -> bool:
        started = time.perf_counter()
        while not self._has_arrived and self._delivery.poll():
            if self._rounds:
                self._post_round()
            elif time.perf_counter() < self._due:
                break
            else:
                self._arrive()
        self._traffic.exchange_seconds += time.perf_counter() - started
        return self._has_arrived

    def wait(self) -> None:
        if self._has_arrived:
            return
        started = time.perf_counter()
        delivery = self._delivery
        with self._traffic.waiting():
            while True:
                destination, source = self._partners
                HERE.note(waiting, self._name_of, delivery.tag, self._num_rounds - len(self._rounds), self._num_rounds,
                          delivery.comm.rank, delivery.peers[destination], delivery.peers[source])
                delivery.wait()
                if not self._rounds:
                    break
                self._post_round()
            early = self._due - time.perf_counter()
            if early > 0:      # sleep(0) would yield the core to another process
                time.sleep(early)
        del delivery
        self._arrive()
        HERE.note("computes")
        self._traffic.exchange_seconds += time.perf_counter() - started

    def _post_round(self) -> None:
        self._partners = self._rounds.popleft()
        self._delivery.post(*self._partners)

    def _arrive(self) -> None:
        self._has_arrived = True
        if not self._delivery.is_read_later:
            self._delivery = None      # frees what was sent
        self._traffic.move(travelling=-1)


def waiting(name_of: Callable[[int], str], tag: int, number: int, num_rounds: int, rank: int, destination: int,
            source: int) -> str:
    """Describe, as a verb phrase, that a rank waits in round `number`, counted from 1."""
    met = list(dict.fromkeys(peer for peer in (source, destination) if peer != rank)) or [rank]
    peers = f"rank {met[0]}" if len(met) == 1 else f"ranks {met[0]} and {met[1]}"
    return f"waits for {peers} in round {number} of {num_rounds} of {name_of(tag)}"


class AlltoallvTransfer(Transfer):
    """Collective: the same messages in one MPI_Alltoallv, finished on construction; ranks without peers take part too.

    Raises KernelError if a rank's messages exceed 2 GiB, the limit of Alltoallv's 32-bit counts.
    """

    def __init__(self, delivery: Delivery, rounds: Rounds, link: Link | None = None, traffic: Traffic | None = None,
                 is_open: bool = False, name_of: Callable[[int], str] = "exchange {}".format):
        traffic = traffic or Traffic()
        super().__init__(_AllAtOnce(delivery, traffic), rounds[:1] or ((0, 0),) * (delivery.comm.size > 1), link,
                         traffic, is_open, name_of)


class _AllAtOnce:
    # Posts all messages as one round.
    def __init__(self, delivery: Delivery, traffic: Traffic):
        self._delivery, self._traffic = delivery, traffic
        self.comm, self.peers, self.tag, self.is_read_later = (delivery.comm, delivery.peers, delivery.tag,
                                                               delivery.is_read_later)
        self.sent_bytes, self.received_bytes = delivery.sent_bytes, delivery.received_bytes
        self.poll, self.wait = delivery.poll, delivery.wait

    def post(self, destination: int, source: int) -> None:
        HERE.note("waits for all ranks in an Alltoallv")
        with self._traffic.waiting():
            self._delivery.post_all()
        HERE.note("computes")


EXCHANGES: dict[str, type[Transfer]] = {"ring": Transfer, "alltoallv": AlltoallvTransfer}


class Link:
    """Delays messages as a link of `bytes_per_second` each way would, one exchange after another. 0: no delay."""

    def __init__(self, bytes_per_second: float = 0.0):
        self._rate, self._is_free_at = bytes_per_second, 0.0

    def reserve(self, num_bytes: int) -> float:
        """Return the time (perf_counter) at which `num_bytes` posted now will have arrived."""
        now = time.perf_counter()
        if self._rate:
            self._is_free_at = max(now, self._is_free_at) + num_bytes / self._rate
        return max(now, self._is_free_at)


def time_rounds(comm: MPI.Comm, link: Link | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Collective: time messages of several sizes; all pairs of a round are busy at once, as in an exchange.

    Returns (samples,) source, of at most MAX_ROUNDS different senders, num_bytes, and seconds as the receiver saw them.
    """
    samples, nothing = [], np.empty(0, np.uint8)
    for number in timed_rounds(comm.size).tolist():
        destination, source = (comm.rank + number) % comm.size, (comm.rank - number) % comm.size
        for num_bytes in SIZES:
            for _ in range(REPETITIONS):
                sent, received = np.zeros((2, num_bytes), np.uint8)
                delivery = HostDelivery(comm, (destination, source), [sent, nothing], [nothing, received], TIMING_TAG)
                comm.Barrier()
                started = time.perf_counter()
                Transfer(delivery, ((0, 1),), link).wait()
                samples.append((source, num_bytes, time.perf_counter() - started))
    found = np.array(samples).reshape(-1, 3)
    return found[:, 0].astype(np.int64), found[:, 1].astype(np.int64), found[:, 2]


def timed_rounds(num_ranks: int) -> np.ndarray:
    num_rounds = num_ranks - 1
    return np.unique(np.linspace(1, num_rounds, min(num_rounds, MAX_ROUNDS)).astype(np.int64))


def split_nodes(comm: MPI.Comm, ranks_per_node: int = 0) -> MPI.Comm:
    """Collective: return the communicator of the ranks that share memory with this one, in rank order.

    `ranks_per_node` consecutive ranks count as a node, such as the ranks of a socket; 0: all.
    """
    machine = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    if not ranks_per_node:
        return machine
    node = machine.Split(machine.rank // ranks_per_node, machine.rank)
    machine.Free()
    return node


def are_worth_it(comm: MPI.Comm, node: MPI.Comm) -> bool:
    """Collective: whether there are several nodes, and one with several ranks."""
    return comm.allreduce(node.size, MPI.MAX) > 1 and comm.allreduce(node.size, MPI.MIN) < comm.size


def ranks_of_node(comm: MPI.Comm) -> list[int]:
    """Collective: return the ranks that share memory with this one."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = node.allgather(comm.rank)
    node.Free()
    return ranks


def pieces(message: np.ndarray | MPI.buffer) -> list:
    return [message[start:start + MAX_MESSAGE_BYTES] for start in range(0, len(message), MAX_MESSAGE_BYTES)]


def swap(comm: MPI.Comm, peers: Sequence[int], sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> None:
    """Collective: send an array to each peer and fill one from each. Empty arrays and arrays to oneself cost nothing.

    `sent` and `received` are contiguous arrays, one per peer; this rank may be a peer.
    """
    requests = []
    for buffers, post in ((received, comm.Irecv), (sent, comm.Isend)):
        for peer, buffer in zip(peers, buffers, strict=True):
            if peer != comm.rank:
                requests += [post([piece, MPI.BYTE], peer, SWAP_TAG) for piece in pieces(buffer.view(np.uint8))]
    MPI.Request.Waitall(requests)


def swap_rows(comm: MPI.Comm, peers: Sequence[int], sent: np.ndarray) -> np.ndarray:
    """Collective: send one row of (num_peers, ...) `sent` to each peer; return what arrived, its own row unchanged."""
    received = sent.copy()
    swap(comm, peers, list(sent.reshape(len(peers), -1)), list(received.reshape(len(peers), -1)))
    return received


class Block(tuple):
    """(buffer, counts, displacements) of messages that are views of one buffer."""


def all_to_all(comm: MPI.Comm, peers: Sequence[int], send: Block, receive: Block) -> None:
    extent = max(max(map(sum, zip(*block[1:], strict=True))) for block in (send, receive))
    if extent > np.iinfo(np.int32).max:
        raise KernelError(f"an exchange of {extent} bytes passes Alltoallv's limit of 2 GiB a rank; "
                          "use --set exchange=ring")
    comm.Alltoallv(*([buffer, _of_all_ranks(comm.size, peers, counts, first), MPI.BYTE]
                     for buffer, counts, first in (send, receive)))


def _of_all_ranks(num_ranks: int, peers: Sequence[int], *columns: list[int]) -> tuple[list[int], ...]:
    spread = np.zeros((len(columns), num_ranks), np.int64)
    spread[:, list(peers)] = columns
    return tuple(spread.tolist())


def _block(messages: list[np.ndarray]) -> Block:
    base = messages[0].base
    address = base.__array_interface__["data"][0]
    return placed(base, messages, [message.__array_interface__["data"][0] - address for message in messages])


def placed(buffer, messages: list, first: list[int]) -> Block:
    counts = [len(message) for message in messages]
    return Block((buffer, counts, [start if count else 0 for start, count in zip(first, counts, strict=True)]))
