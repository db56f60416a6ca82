"""Arrival: the received messages of one exchange, read in the epoch that sent them or a later one.

`finish(rows)` waits for the messages and decodes them into halo rows, or adds them to gradients. If rows are kept
between epochs, a `ReceivedTable` holds them: each message updates the table, and rows are read from it. `wait`
checks that the rows are no older than the method allows.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.codec import MessageArena, Messages, decode, key_of_sender
from hpcgnn.exchange.plan import NO_ROWS, RowList
from hpcgnn.exchange.state import State, Stateful, device_of, fill, joined, on_host, split
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.ops.aggregation import PackedRows
from hpcgnn.ops.arena import in_memory
from hpcgnn.ops.counter import BACKWARD, CounterKey
from hpcgnn.ops.quantization import Buffer, MessageLayout
from hpcgnn.ops.streams import Streams


class Travel(Protocol):
    """Messages on their way; see `hpcgnn.exchange.transfer.Transfer`."""

    def poll(self) -> bool:
        """Whether all have arrived."""

    def wait(self) -> None:
        """Return when all have arrived."""


class Arrived:
    """Messages that arrived before a checkpoint was written."""

    def poll(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class ReceivedTable(Stateful):
    """Received rows kept between epochs, (num_received, dim) float32 in message order."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        pass

    @abstractmethod
    def apply(self, arrival: Arrival) -> None:
        """Update the table by the messages that have arrived."""

    @abstractmethod
    def place(self, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
        """Write the table's rows to `rows`, or add them with `accumulate`."""


@dataclass(eq=False)
class Arrival:
    """Messages of one exchange, and the rows that they bring."""

    messages: Messages
    receive: list[Buffer]                               # uint8, one per peer, inside `received`
    received: Buffer
    transfer: Travel
    key: CounterKey                                     # key with which this rank encoded what it sent
    traffic: Traffic
    streams: Streams  # rows are decoded on the message stream; the computing stream waits, not the host
    table: ReceivedTable | None = None                  # holds the rows, if they are kept between epochs
    before: Arrival | None = None                       # messages that must update the table first
    after: Callable[[torch.Tensor], None] | None = None  # called with the written rows
    # age of the rows in epochs, and the largest allowed age
    age: int = 0
    max_age: int = 0
    is_applied: bool = False                            # whether the messages have updated the table
    is_read_once: bool = False                          # whether nobody reads the receive buffer again
    # (num_peers,) int64, epoch in which each peer's message was encoded; None: the key's
    sent_epochs: np.ndarray | None = None

    @property
    def epoch(self) -> int:
        return self.key.epoch

    @property
    def is_gradient(self) -> bool:
        return self.key.purpose == BACKWARD

    @property
    def keys(self) -> list[CounterKey]:
        """The key by which each peer encoded its message."""
        if self.sent_epochs is None and self.key.purpose != BACKWARD:
            return [self.key] * len(self.messages.peers)
        keys, epochs = [], self.sent_epochs
        for place, rank in enumerate(self.messages.peers):
            key = self.key if epochs is None else self.key._replace(epoch=int(epochs[place]))
            keys.append(key_of_sender(key, rank))
        return keys

    @property
    def device(self) -> torch.device:
        return device_of(self.received)

    def poll(self) -> bool:
        """Let MPI make progress; whether all has arrived."""
        # Both are polled, since each makes progress only then.
        had_arrived = self.before is None or self.before.poll()
        return self.transfer.poll() and had_arrived

    def wait(self) -> None:
        """Wait for all messages; KernelError if the rows are older than allowed."""
        if not 0 <= self.age <= self.max_age:
            raise KernelError(f"halo rows are {self.age} epochs old, {self.max_age} are allowed")
        if self.before is not None:
            self.before.transfer.wait()
        self.transfer.wait()
        if self.age:
            self.traffic.note_age(self.age)

    def packed(self) -> PackedRows | None:
        """The quantized rows, valid until the next exchange; None if `finish` must write them."""
        if self.table is not None or self.after is not None or not self.messages.is_packed:
            return None
        self.wait()
        self.before = None
        self.streams.message.join()
        return PackedRows(self.received, *self.messages.halo_rows)

    def rows_in_message(self, dtype: torch.dtype) -> torch.Tensor | None:
        """The rows as a view of the receive buffer; None if `finish` must write them."""
        messages = self.messages
        if (not self.is_read_once or self.table is not None or self.after is not None
                or not messages.is_table_of(8 * dtype.itemsize)):
            return None
        self.wait()
        self.before = None
        rows = self.received[:messages.num_halo * messages.dim * dtype.itemsize]
        return torch.from_numpy(rows).view(dtype).view(messages.num_halo, messages.dim)

    def finish(self, rows: torch.Tensor) -> None:
        """Wait, then write or add the rows; KernelError if the rows are older than allowed."""
        self.wait()
        started = time.perf_counter()
        # Gradients are added to rows here and there, which would write a table on a disk many times.
        with in_memory(rows) if self.is_gradient else nullcontext(), self.streams.message.after_computing():
            if self.table is None:
                decode(self.messages, self.receive, self.keys, rows, self.is_gradient)
            else:
                if self.before is not None:
                    self.before.apply()
                self.apply()
                self.table.place(self.messages, rows, self.is_gradient)
            self.before = None
            if self.after is not None:
                self.after(rows)
        self.streams.message.join()
        self.traffic.quantize_seconds += time.perf_counter() - started

    def learn(self) -> None:
        """Update the table by messages that have arrived, before their rows are read."""
        with self.streams.message.after_computing():
            self.apply()
        self.streams.message.join()

    def apply(self) -> None:
        if self.table is not None and not self.is_applied:
            self.table.apply(self)
            self.is_applied = True

    def state(self) -> State:
        """Return what arrived, with layout and key; without the bytes if a table holds the rows."""
        # If a table holds the rows, the bytes are left out.
        messages, key = self.messages, self.key
        arrived = [buffer[:0] if self.is_applied else buffer for buffer in self.receive]
        return {
            "is_applied": self.is_applied, "dim": messages.dim, "num_halo": messages.num_halo, "key": key._asdict(),
            "code": messages.receive_layouts[0].code,
            "position": joined([rows.position for rows in messages.receive_rows]),
            "bit_width": joined([layout.bit_width for layout in messages.receive_layouts]),
            "bytes": joined([on_host(buffer) for buffer in arrived]),
        }


def restored_messages(state: State, peers: tuple[int, ...], incoming: tuple[RowList, ...]) -> Messages:
    """Rebuild the received messages that `Arrival.state` describes; `incoming` has all rows that can arrive."""
    dim = int(state["dim"])
    receive_rows = tuple(rows.at(position) for rows, position in zip(incoming, split(state["position"]), strict=True))
    layouts = tuple(MessageLayout.build(widths, dim, str(state["code"])) for widths in split(state["bit_width"]))
    nothing = MessageLayout.build(np.empty(0, np.uint8), dim)
    return Messages(peers, (NO_ROWS,) * len(incoming), receive_rows, (nothing,) * len(incoming), layouts,
                    int(state["num_halo"]), dim)


def restored_arrival(state: State, peers: tuple[int, ...], incoming: tuple[RowList, ...], arena: MessageArena,
                     traffic: Traffic, streams: Streams) -> Arrival:
    """Rebuild the arrival from what `Arrival.state` returned, its bytes in an arena."""
    messages = restored_messages(state, peers, incoming)
    _, receive = arena.slices(messages.send_sizes, messages.receive_sizes)
    is_applied = bool(state["is_applied"])
    if not is_applied:
        for buffer, values in zip(receive, split(state["bytes"]), strict=True):
            fill(buffer, values)
    key = CounterKey(**{name: int(value) for name, value in state["key"].items()})
    return Arrival(messages, receive, arena.received, Arrived(), key, traffic, streams, is_applied=is_applied)


class PassedOn:
    """Base of arrivals that change another `arrival`'s rows in `finish`; such rows can't be read from messages."""

    arrival: Any

    def poll(self) -> bool:
        return self.arrival.poll()

    def wait(self) -> None:
        self.arrival.wait()

    def packed(self) -> None:
        pass

    def rows_in_message(self, dtype: torch.dtype) -> None:
        pass
