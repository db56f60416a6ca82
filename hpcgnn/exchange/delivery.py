"""Deliveries: hand the messages of one exchange to MPI, from host memory or by device pointers.

A transfer decides when a round begins; a delivery posts its sends and receives and waits for them. Messages beyond
MAX_MESSAGE_BYTES travel as several. `staging.py` has the delivery that copies device messages through the host.
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
    """Copies to the host which rows a device could not quantize, on the message stream, after the kernels.

    `found`, (num_messages,) int32 on the device, is written by `start_quantizing`.
    """

    def __init__(self, found: torch.Tensor, rows: tuple[RowList, ...], key: CounterKey, streams: Streams):
        self._rows, self._key = rows, key
        self._notes: torch.Tensor | None = streams.pinned(found.nbytes)
        streams.message.copy(self._notes, found.view(torch.uint8))

    def read(self) -> None:
        """Check the rows, once, after the message stream was waited for; KernelError if a row can't be quantized."""
        notes, self._notes = self._notes, None
        if notes is not None:
            for found, rows in zip(notes.view(torch.int32).tolist(), self._rows, strict=True):
                refuse_bad_row(found, rows.node_id, self._key)


class Delivery(Protocol):
    """The messages of one exchange between their buffers and MPI."""

    def post(self, destination: int, source: int) -> None:
        """Begin a round: send to the peer at place `destination`, receive from the one at place `source`."""

    def post_all(self) -> None:
        """Collective: exchange all messages in one MPI_Alltoallv; KernelError if a rank's messages exceed 2 GiB."""

    def poll(self) -> bool:
        """Make progress; return whether everything posted has arrived."""

    def wait(self) -> None:
        """Return when everything posted has arrived."""


class HostDelivery:
    """Messages in host memory; uint8 buffers, one per peer, must not be touched before arrival."""

    def __init__(self, comm: MPI.Comm, peers: Sequence[int], send: list[np.ndarray], receive: list[np.ndarray],
                 tag: int):
        self._comm, self._peers, self._send, self._receive, self._tag = comm, peers, send, receive, tag
        self._requests: list[MPI.Request] = []     # posted since everything had last arrived

    def post(self, destination: int, source: int) -> None:
        self._requests += [self._comm.Irecv([piece, MPI.BYTE], self._peers[source], self._tag)
                           for piece in pieces(self._receive[source])]
        self._requests += [self._comm.Isend([piece, MPI.BYTE], self._peers[destination], self._tag)
                           for piece in pieces(self._send[destination])]

    def post_all(self) -> None:
        all_to_all(self._comm, self._peers, _block(self._send), _block(self._receive))

    def poll(self) -> bool:
        if self._requests and MPI.Request.Testall(self._requests):
            self._requests.clear()
        return not self._requests

    def wait(self) -> None:
        MPI.Request.Waitall(self._requests)
        self._requests.clear()


class DirectDelivery:
    """Messages in device memory, given to MPI as pointers.

    Nothing is posted before the device has passed `ready`: then it has written the messages to send, and no longer
    reads the receive buffers. Kernels queued meanwhile run on. With `is_open` nobody polls, so the host waits for
    `ready` at once.
    """

    def __init__(self, comm: MPI.Comm, peers: Sequence[int], send: list[torch.Tensor], receive: list[torch.Tensor],
                 tag: int, ready: Mark, checks: RowChecks | None, is_open: bool):
        self._tensors, self._ready, self._checks, self._is_open = (send, receive), ready, checks, is_open
        self._comm, self._peers, self._tag = comm, peers, tag
        self._delivery: HostDelivery | None = None
        self._unposted: deque[tuple[int, int]] = deque()

    def post(self, destination: int, source: int) -> None:
        self._unposted.append((destination, source))
        if self._is_open or self._ready.query():
            self._hand_over()

    def post_all(self) -> None:
        self._begin()
        all_to_all(self._comm, self._peers, *map(_device_block, self._tensors))

    def poll(self) -> bool:
        if self._unposted:
            if not self._ready.query():
                return False
            self._hand_over()
        return self._delivery is None or self._delivery.poll()

    def wait(self) -> None:
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
    return [message[start:start + MAX_MESSAGE_BYTES] for start in range(0, len(message), MAX_MESSAGE_BYTES)]


def device_memory(tensor: torch.Tensor) -> MPI.buffer:
    """Wrap contiguous device bytes for MPI by their address."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), len(tensor))


class Block(tuple):
    """(buffer, counts, displacements) of messages that are views of one buffer."""


def all_to_all(comm: MPI.Comm, peers: Sequence[int], send: Block, receive: Block) -> None:
    extent = max(max(map(sum, zip(*block[1:], strict=True))) for block in (send, receive))
    if extent > np.iinfo(np.int32).max:
        raise KernelError(f"an exchange of {extent} bytes passes Alltoallv's limit of 2 GiB per rank; "
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
    counts = [len(message) for message in messages]
    return Block((buffer, counts, [start if count else 0 for start, count in zip(first, counts, strict=True)]))
