"""Arrival: an exchange that was started and will be finished, now or an epoch later, and what it keeps between epochs.

Whether rows may be old, and how old, is checked here and nowhere else.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable

import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.codec import Messages, decode
from hpcgnn.exchange.flight import Flight
from hpcgnn.exchange.kept import Kept, KeptTable, State
from hpcgnn.exchange.plan import RowList
from hpcgnn.exchange.ring import MessageArena
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transport import HOST, Transport
from hpcgnn.ops.aggregation import PackedRows
from hpcgnn.ops.streams import HOST_STREAMS, Streams


class ReceivedTable(KeptTable):
    """Received rows that are kept between epochs, (num_received, dim) float32 in the order of the messages."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Rows kept; 0 before the first have arrived."""

    @abstractmethod
    def apply(self, flight: Flight) -> None:
        """Learn what has arrived."""

    @abstractmethod
    def place(self, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
        """Write the table to its rows, or add it."""


class Site(Kept):
    """Keep the rows and messages of one exchange, of a layer in one direction, from epoch to epoch.

    Two arenas take turns, so that an epoch's messages stay readable while the next one's arrive.

    Parameters
    ----------
    table : ReceivedTable or None
    incoming : tuple of RowList, one a rank      all rows that can come
    transport : Transport
    """

    def __init__(self, table: ReceivedTable | None, incoming: tuple[RowList, ...], transport: Transport = HOST):
        self.table = table
        self.previous: Flight | None = None
        self._incoming = incoming
        self._arenas = MessageArena(transport), MessageArena(transport)
        self._turn = 0

    def next_arena(self) -> MessageArena:
        """Return the arena that the previous epoch's messages don't lie in."""
        self._turn = 1 - self._turn
        return self._arenas[self._turn]

    @property
    def num_bytes(self) -> int:
        """See `KeptTable`."""
        return sum(arena.num_bytes for arena in self._arenas) + (0 if self.table is None else self.table.num_bytes)

    def settle(self) -> None:
        """Collective: see `Kept`."""
        if self.previous is not None:
            self.previous.transfer.wait()

    def state(self) -> State:
        """See `KeptTable`; what is on its way has arrived."""
        return {"flight": {} if self.previous is None else self.previous.state(),
                "table": {} if self.table is None else self.table.state()}

    def restore(self, state: State, device: torch.device) -> None:
        """See `KeptTable`."""
        if state["flight"]:
            self.previous = Flight.restored(state["flight"], self._incoming, self.next_arena())
        if self.table is None:
            return
        self.table.restore(state["table"], device)
        num_rows = sum(map(len, self.previous.messages.receive_rows)) if self.previous else 0
        if self.table.num_rows not in (0, num_rows):
            raise KernelError(f"{self.table.num_rows} received rows were kept where messages bring {num_rows}")


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
        """Let MPI make progress, and tell whether all has arrived."""
        return all([flight.transfer.poll() for flight in self._flights])

    def packed(self) -> PackedRows | None:
        """Return the rows as they arrived, valid until the next exchange; None where `finish` must write them."""
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
