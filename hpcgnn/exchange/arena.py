"""MessageArena: the memory in which the messages of an exchange lie, reused from exchange to exchange."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.exchange.delivery import Delivery, RowChecks
from hpcgnn.exchange.transport import HOST, Transport
from hpcgnn.ops.arena import empty
from hpcgnn.ops.quantization import Buffer

ALIGNMENT = 64                 # bytes; each message of an arena begins on a cache line
NOTHING = np.empty(0, np.uint8)


class MessageArena:
    """Hold one send and one receive buffer, grown when a larger exchange comes and reused by all.

    A message that the next exchange leaves out, whose others are as long as before, stays where it is.

    Parameters
    ----------
    transport : Transport      where the buffers lie
    is_passing : bool          whoever reads a message after the next call of `slices` holds it. Then, on the host,
        buffers are cut anew from the arena of all large tensors, as long as the exchange needs, and what is sent is
        held by its transfer alone: the messages of an evaluation, which may be 16 times those of training, leave their
        memory to the rows that arrive, and to training's. On a device queued kernels may still read them.

    Attributes
    ----------
    is_passing : bool          as it was asked for, and on the host
    """

    def __init__(self, transport: Transport = HOST, is_passing: bool = False) -> None:
        self._transport, self._staging = transport, transport.new_staging()
        self.is_passing = is_passing and transport is HOST
        self._send, self._receive, self._passed_bytes = transport.empty(0), transport.empty(0), 0

    def slices(self, send_bytes: list[int], receive_bytes: list[int]) -> tuple[list[Buffer], list[Buffer]]:
        """Return a writable uint8 view for each peer's message, to send and to receive."""
        if self.is_passing:
            self._receive = NOTHING     # returned, so that the new one may lie where it lay
        send, self._receive = self._fitting(self._send, send_bytes), self._fitting(self._receive, receive_bytes)
        if self.is_passing:
            self._passed_bytes = len(send)
        else:
            self._send = send
        return _cut(send, send_bytes), _cut(self._receive, receive_bytes)

    def deliver(self, comm: MPI.Comm, peers: Sequence[int], send: list[Buffer], receive: list[Buffer], tag: int,
                checks: RowChecks | None = None, is_open: bool = False) -> Delivery:
        """See `Transport.deliver`; the messages are `slices`, or empty where they are left out."""
        return self._transport.deliver(comm, peers, send, receive, tag, self._staging, checks, is_open)

    def _fitting(self, buffer: Buffer, sizes: list[int]) -> Buffer:
        needed = sum(map(_padded, sizes))
        if len(buffer) >= needed:
            return buffer
        return empty((needed,), torch.uint8).numpy() if self.is_passing else self._transport.empty(needed)

    @property
    def num_bytes(self) -> int:
        """Memory kept, or of the last exchange where messages pass."""
        staged = 0 if self._staging is None else self._staging.num_bytes
        return len(self._send) + self._passed_bytes + len(self._receive) + staged

    @property
    def received(self) -> Buffer:
        """Return the whole receive buffer, in which messages begin at `starts` of their sizes."""
        return self._receive


def starts(sizes: list[int]) -> list[int]:
    """Byte at which each of an exchange's messages begins in its buffer."""
    return np.concatenate([[0], np.cumsum([_padded(size) for size in sizes])[:-1]]).astype(int).tolist()


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _cut(buffer: Buffer, sizes: list[int]) -> list[Buffer]:
    views, start = [], 0
    for size in sizes:
        views.append(buffer[start:start + size])
        start += _padded(size)
    return views
