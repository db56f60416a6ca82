"""Arrival: an exchange that was started and will be finished, now or an epoch later, and what it keeps between epochs.

Whether rows may be old, and how old, is checked here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.codec import Messages, decode
from hpcgnn.exchange.ring import MessageArena, Transfer
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transport import HOST, Transport
from hpcgnn.ops.aggregation import PackedRows
from hpcgnn.ops.quantization import Buffer
from hpcgnn.ops.streams import HOST_STREAMS, Streams


@dataclass
class Flight:
    """The messages of one exchange of one epoch.

    Attributes
    ----------
    messages : Messages
    receive : list of uint8 buffers, one a rank; received : the buffer that they lie in
    transfer : Transfer
    epoch : int                  whose rows they are
    is_applied : bool            a table of received rows holds them
    """

    messages: Messages
    receive: list[Buffer]
    received: Buffer
    transfer: Transfer
    epoch: int
    is_applied: bool = False

    @property
    def device(self) -> torch.device:
        """Where the messages lie."""
        return self.received.device if isinstance(self.received, torch.Tensor) else torch.device("cpu")


class ReceivedTable(Protocol):
    """Received rows that are kept between epochs, (num_received, dim) float32 in the order of the messages."""

    def apply(self, flight: Flight) -> None:
        """Learn what has arrived."""

    def place(self, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
        """Write the table to its rows, or add it."""


class Site:
    """What one exchange, of a layer in one direction, keeps from epoch to epoch.

    Two arenas take turns, so that an epoch's messages stay readable while the next one's arrive.
    """

    def __init__(self, table: ReceivedTable | None, transport: Transport = HOST):
        self.table = table
        self.previous: Flight | None = None
        self._arenas = MessageArena(transport), MessageArena(transport)
        self._turn = 0

    def next_arena(self) -> MessageArena:
        """The arena that the previous epoch's messages don't lie in."""
        self._turn = 1 - self._turn
        return self._arenas[self._turn]

    @property
    def num_bytes(self) -> int:
        """Memory kept."""
        return sum(arena.num_bytes for arena in self._arenas) + getattr(self.table, "num_bytes", 0)


class Arrival:
    """The rows that an exchange brings, once `finish` or `packed` has waited for them.

    Parameters
    ----------
    flights : tuple of Flight       all to wait for; rows are read from the last
    epoch : int                     that reads
    max_age : int                   epochs that the rows may be old
    table : ReceivedTable or None
    accumulate : bool               whether rows are added
    traffic : Traffic
    after : function or None        called with the rows that were written
    streams : Streams               on whose message stream rows are decoded; the computing stream waits, not the host
    """

    def __init__(self, flights: tuple[Flight, ...], epoch: int, max_age: int, table: ReceivedTable | None,
                 accumulate: bool, traffic: Traffic, after: Callable[[torch.Tensor], None] | None = None,
                 streams: Streams = HOST_STREAMS):
        self._message_stream = streams.message
        self._flights, self._table, self._accumulate = flights, table, accumulate
        self._traffic, self._after = traffic, after
        self._age, self._max_age = epoch - flights[-1].epoch, max_age

    def poll(self) -> bool:
        """Let MPI make progress; whether all has arrived."""
        return all([flight.transfer.poll() for flight in self._flights])

    def packed(self) -> PackedRows | None:
        """The rows as they arrived, valid until the next exchange; None where they must be written by `finish`."""
        last = self._flights[-1]
        if self._table is not None or self._after is not None or not last.messages.is_packed:
            return None
        self.wait()
        self._message_stream.join()
        return PackedRows(last.received, *last.messages.halo_rows)

    def finish(self, rows: torch.Tensor) -> None:
        """Wait, and write or add the rows.

        Raises
        ------
        KernelError      the rows are older than allowed
        """
        self.wait()
        started = time.perf_counter()
        with self._message_stream.after_computing():
            self._write(rows)
        self._message_stream.join()
        self._traffic.quantize_seconds += time.perf_counter() - started

    def _write(self, rows: torch.Tensor) -> None:
        last = self._flights[-1]
        if self._table is None:
            decode(last.messages, last.receive, rows, self._accumulate)
        else:
            for flight in self._flights:
                if not flight.is_applied:
                    self._table.apply(flight)
                    flight.is_applied = True
            self._table.place(last.messages, rows, self._accumulate)
        if self._after is not None:
            self._after(rows)

    def wait(self) -> None:
        """Return when all has arrived.

        Raises
        ------
        KernelError      the rows are older than allowed
        """
        if not 0 <= self._age <= self._max_age:
            raise KernelError(f"halo rows are {self._age} epochs old, {self._max_age} are allowed")
        for flight in self._flights:
            flight.transfer.wait()
        self._traffic.staleness = max(self._traffic.staleness, self._age)
