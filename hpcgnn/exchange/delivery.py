"""Deliveries: how the messages of one exchange are handed to MPI, from the host's memory or by pointers to a device's.

Which rounds there are, and when the next one begins, is the ring's business; staging through the host is staging's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.plan import RowList
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.quantization import refuse_bad_row
from hpcgnn.ops.streams import Mark, Streams

MAX_MESSAGE_BYTES = 1 << 30    # longer messages travel as several, below MPI's 32-bit counts


class RowChecks:
    """Bring to the host what a device notes of the rows that one exchange sends, behind the kernels that note it.

    To be made among those kernels, on the message stream.

    Parameters
    ----------
    found : (num_messages,) int32 tensor on the device      see `start_quantizing`
    rows : tuple of RowList                                 of the messages
    key : CounterKey
    streams : Streams
    """

    def __init__(self, found: torch.Tensor, rows: tuple[RowList, ...], key: CounterKey, streams: Streams):
        self._rows, self._key = rows, key
        self._notes: torch.Tensor | None = streams.pinned(found.nbytes)
        streams.message.copy(self._notes, found.view(torch.uint8))

    def read(self) -> None:
        """Look at the notes, once: the message stream has been waited for since they were queued.

        Raises
        ------
        KernelError      a row can't be quantized
        """
        notes, self._notes = self._notes, None
        if notes is not None:
            for found, rows in zip(notes.view(torch.int32).tolist(), self._rows, strict=True):
                refuse_bad_row(found, rows.node_id, self._key)


class Delivery(Protocol):
    """The messages of one exchange between their buffers and MPI."""

    def post(self, destination: int, source: int) -> None:
        """Begin a round: send to the peer in place `destination`, receive from the one in place `source`."""

    def post_all(self) -> None:
        """Collective: send and receive all messages in one MPI_Alltoallv.

        Raises
        ------
        KernelError      a rank's messages pass 2 GiB, the limit of Alltoallv's 32-bit counts
        """

    def poll(self) -> bool:
        """Make progress, and tell whether all that was begun has arrived."""

    def wait(self) -> None:
        """Return when all that was begun has arrived."""


class HostDelivery:
    """Messages in memory that MPI reads and writes; see `Delivery`.

    Parameters
    ----------
    peers : ranks that the buffers are of
    send, receive : list of uint8 buffers, one a peer, left alone until they have arrived
    tag : int      equal on all ranks for one exchange
    """

    def __init__(self, comm: MPI.Comm, peers: Sequence[int], send: list[np.ndarray], receive: list[np.ndarray],
                 tag: int):
        self._comm, self._peers, self._send, self._receive, self._tag = comm, peers, send, receive, tag
        self._requests: list[MPI.Request] = []     # of what was begun since all had arrived

    def post(self, destination: int, source: int) -> None:
        """See `Delivery`."""
        self._requests += [self._comm.Irecv([piece, MPI.BYTE], self._peers[source], self._tag)
                           for piece in pieces(self._receive[source])]
        self._requests += [self._comm.Isend([piece, MPI.BYTE], self._peers[destination], self._tag)
                           for piece in pieces(self._send[destination])]

    def post_all(self) -> None:
        """See `Delivery`."""
        all_to_all(self._comm, self._peers, _block(self._send), _block(self._receive))

    def poll(self) -> bool:
        """See `Delivery`."""
        if self._requests and MPI.Request.Testall(self._requests):
            self._requests.clear()
        return not self._requests

    def wait(self) -> None:
        """See `Delivery`."""
        MPI.Request.Waitall(self._requests)
        self._requests.clear()


class DirectDelivery:
    """Messages in a device's memory, whose pointers MPI takes; see `Delivery`.

    Nothing is posted before the device has passed `ready`: it has then written what is sent, and read what the receive
    buffer held. Kernels that are queued meanwhile run on.

    Parameters
    ----------
    ready : Mark
    checks : RowChecks or None      of the rows that are sent
    is_open : bool          nobody polls this exchange, so it is posted at once
    others : see `HostDelivery`
    """

    def __init__(self, comm: MPI.Comm, peers: Sequence[int], send: list[torch.Tensor], receive: list[torch.Tensor],
                 tag: int, ready: Mark, checks: RowChecks | None, is_open: bool):
        self._tensors, self._ready, self._checks, self._is_open = (send, receive), ready, checks, is_open
        self._comm, self._peers, self._tag = comm, peers, tag
        self._delivery: HostDelivery | None = None
        self._unposted: deque[tuple[int, int]] = deque()

    def post(self, destination: int, source: int) -> None:
        """See `Delivery`."""
        self._unposted.append((destination, source))
        if self._is_open or self._ready.query():
            self._hand_over()

    def post_all(self) -> None:
        """See `Delivery`."""
        self._begin()
        all_to_all(self._comm, self._peers, *map(_device_block, self._tensors))

    def poll(self) -> bool:
        """See `Delivery`."""
        if self._unposted:
            if not self._ready.query():
                return False
            self._hand_over()
        return self._delivery is None or self._delivery.poll()

    def wait(self) -> None:
        """See `Delivery`."""
        if self._unposted:
            self._hand_over()
        if self._delivery is not None:
            self._delivery.wait()

    def _hand_over(self) -> None:
        self._begin()
        while self._unposted:
            self._delivery.post(*self._unposted.popleft())

    def _begin(self) -> None:
        if self._delivery is None:
            self._ready.synchronize()     # MPI touches these buffers from here on
            if self._checks is not None:
                self._checks.read()
            self._delivery = HostDelivery(self._comm, self._peers,
                                          *[[device_memory(message) for message in messages]
                                            for messages in self._tensors], self._tag)


def pieces(message: np.ndarray | MPI.buffer) -> list:
    """Cut a message into the pieces that it travels as, each of at most MAX_MESSAGE_BYTES."""
    return [message[start:start + MAX_MESSAGE_BYTES] for start in range(0, len(message), MAX_MESSAGE_BYTES)]


def device_memory(tensor: torch.Tensor) -> MPI.buffer:
    """Give MPI contiguous bytes of a device by their address."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), len(tensor))


class Block(tuple):
    """(buffer, counts, displacements) of messages that are views of one buffer."""


def all_to_all(comm: MPI.Comm, peers: Sequence[int], send: Block, receive: Block) -> None:
    """Collective: see `Delivery.post_all`. Nowhere else in an exchange does MPI hear of every rank."""
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


def _device_block(messages: list[torch.Tensor]) -> Block:
    first = [message.storage_offset() for message in messages]     # views of an arena's buffer
    present = [(message.data_ptr() - start, start + len(message))
               for message, start in zip(messages, first, strict=True) if len(message)]
    address, extent = max(present, default=(0, 0))
    return placed(MPI.buffer.fromaddress(address, extent), messages, first)


def placed(buffer, messages: list, first: list[int]) -> Block:
    """Describe messages that begin at the bytes `first` of a buffer; an empty message moves no other."""
    counts = [len(message) for message in messages]
    return Block((buffer, counts, [start if count else 0 for start, count in zip(first, counts, strict=True)]))
