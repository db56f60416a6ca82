"""What is kept of received and sent rows from epoch to epoch, by exchange.

Between messages and rows there may be a table: `PredictedRows`, if messages hold only differences from the last
reconstruction, or `SmoothedRows`, PipeGCN's running mean. `Movement` measures how far rows move between epochs, at the
sender: receivers only have quantized rows, and at 1 or 2 bits the rounding errors are much larger than the movement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import Arrival, ReceivedTable, restored_arrival
from hpcgnn.exchange.codec import MessageArena, Messages, no_bad_rows
from hpcgnn.exchange.kinds.kind import NUM_SUMS
from hpcgnn.exchange.plan import RowList
from hpcgnn.exchange.sender import Sender
from hpcgnn.exchange.state import State, Stateful, on_host, table_of
from hpcgnn.exchange.thinned import note_in_list, received_part, sent_part
from hpcgnn.ops.arena import empty, keep_long
from hpcgnn.ops.counter import BACKWARD, CounterKey
from hpcgnn.ops.quantization import Buffer, dequantize_rows, quantize_rows, start_quantizing
from hpcgnn.ops.resident import on_device

SAMPLED_ROWS = 2048     # sampled rows per exchange and rank
EPOCHS_BACK = 2


class KeptMessages(Stateful):
    """The messages and rows of one exchange, kept from epoch to epoch.

    An epoch's messages stay readable while the next epoch's arrive: on the host their reader holds them, on a device
    two arenas alternate. `last` holds the last epoch's messages.
    """

    def __init__(self, sender: Sender, purpose: int, table: Any):
        self.table, self.movement = table, Movement()
        self.last: Arrival | None = None
        self._sender, self._is_gradient = sender, purpose == BACKWARD
        arena = MessageArena(sender.transport, is_passing=True)
        self._arenas = (arena,) if arena.is_passing else (arena, MessageArena(sender.transport))
        self._turn = 0

    def next_arena(self) -> MessageArena:
        self._turn = (self._turn + 1) % len(self._arenas)
        return self._arenas[self._turn]

    @property
    def num_bytes(self) -> int:
        tables = 0 if self.table is None else self.table.num_bytes
        return sum(arena.num_bytes for arena in self._arenas) + tables + self.movement.num_bytes

    def settle(self) -> None:
        if self.last is not None:
            self.last.transfer.wait()

    def state(self) -> State:
        if self.last is not None:
            self.last.learn()      # the table has the rows, so their bytes need not be saved
        return {"flight": {} if self.last is None else self.last.state(),
                "is_in_table": self.last is not None and self.last.table is not None,
                "table": {} if self.table is None else self.table.state(), "movement": self.movement.state()}

    def restore(self, state: State, device: torch.device) -> None:
        self.movement.restore(state["movement"], device)
        if state["flight"]:
            plan = self._sender.plan
            incoming = plan.boundary if self._is_gradient else plan.halo
            self.last = restored_arrival(state["flight"], plan.peers, incoming, self.next_arena(),
                                         self._sender.training, self._sender.transport.streams)
            self.last.table = self.table if state.get("is_in_table", True) else None
        if self.table is None:
            return
        self.table.restore(state["table"], device)
        num_rows = sum(map(len, self.last.messages.receive_rows)) if self.last else 0
        if self.table.num_rows not in (0, num_rows):
            raise KernelError(f"{self.table.num_rows} received rows were kept where messages bring {num_rows}")


class PredictedRows(ReceivedTable):
    """Received rows of predictive messages."""

    def __init__(self, sent: Reconstruction | None = None, received: Reconstruction | None = None) -> None:
        self.sent, self._received = sent or Reconstruction(), received or Reconstruction()

    def apply(self, arrival: Arrival) -> None:
        messages = arrival.messages
        sizes = [len(listed) for listed in messages.receive_rows]
        known = self._received.before(arrival.epoch, messages.receive_rows, messages.dim, arrival.device)
        for listed, order, layout, buffer, key, held in zip(messages.receive_rows, messages.receive_order,
                                                            messages.receive_layouts, arrival.receive, arrival.keys,
                                                            known.split(sizes), strict=True):
            if len(listed):
                part = received_part(listed, order, layout, buffer)
                dequantize_rows(part.message, part.row_index, part.node_id, part.layout, held, accumulate=True, key=key)
        self._received.keep()

    def place(self, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
        _place(self._received.rows, messages, rows, accumulate)

    @property
    def num_bytes(self) -> int:
        return self.sent.num_bytes + self._received.num_bytes

    @property
    def num_rows(self) -> int:
        return _rows_of(self._received.rows)

    def state(self) -> State:
        return {"sent": self.sent.state(), "received": self._received.state()}

    def restore(self, state: State, device: torch.device) -> None:
        self.sent.restore(state["sent"], device)
        self._received.restore(state["received"], device)


def encode_difference(messages: Messages, rows: torch.Tensor, key: CounterKey, buffers: list[Buffer],
                      sent: Reconstruction) -> torch.Tensor | None:
    """Quantize the difference between each row and the receiver's reconstruction, and correct the sender's copy.

    Rounding is to nearest: the error of a message is part of the next difference, so errors don't add up, and they
    fade, since the quantizer's error is smaller than its input (Richtarik et al., NeurIPS 2021, EF21). As training
    settles, the range of differences shrinks, and with it the error at the same width. The same holds for rows that a
    thinned message leaves out. Returns as `encode`.
    """
    known = sent.before(key.epoch, messages.send_rows, rows.shape[1], rows.device)
    found = no_bad_rows(messages, rows) if isinstance(buffers[0], torch.Tensor) else None
    for place, held in enumerate(known.split([len(listed) for listed in messages.send_rows])):
        listed, order, layout = messages.send_rows[place], messages.send_order[place], messages.send_layouts[place]
        if not len(listed):
            continue
        difference = rows[on_device(listed.index, rows).long()].float() - held
        index, node_id, layout, message = sent_part(listed, order, layout, buffers[place], difference)
        if found is None:
            quantize_rows(difference, index, node_id, layout, key, message, "nearest")
        else:
            bad = found[place:place + 1]
            start_quantizing(difference, index, node_id, layout, key, message, bad, "nearest")
            note_in_list(bad, index)
        dequantize_rows(message, index, node_id, layout, held, accumulate=True, key=key)
    sent.keep()
    return found


class Reconstruction(Stateful):
    """The rows of an exchange as the receiver has them, (num_rows, dim) float32 in message order.

    Sender and receiver each hold one and change it by the same messages with the same arithmetic, so both are equal to
    the bit. It starts at zero, and restarts at zero after a missing epoch.
    """

    def __init__(self) -> None:
        self._rows: torch.Tensor | None = None
        self._epoch = -1

    def before(self, epoch: int, lists: Sequence[RowList], dim: int, device: torch.device) -> torch.Tensor:
        """Return the rows of one message per peer, to be corrected in place; then call `keep`."""
        num_rows = sum(map(len, lists))
        if self._rows is None or self._epoch != epoch - 1 or self._rows.shape != (num_rows, dim):
            self._rows = keep_long(empty((num_rows, dim), torch.float32, device)).zero_()
        self._epoch = epoch
        return self._rows

    def keep(self) -> None:
        """Keep the corrected rows."""

    @property
    def rows(self) -> torch.Tensor | None:
        return self._rows

    @property
    def num_bytes(self) -> int:
        return _bytes_of(self._rows)

    def state(self) -> State:
        return {} if self._rows is None else {"epoch": self._epoch, "rows": on_host(self._rows)}

    def restore(self, state: State, device: torch.device) -> None:
        if state:
            self._rows, self._epoch = table_of(state["rows"], device), int(state["epoch"])


class SmoothedRows(ReceivedTable):
    """Running mean of received rows.

    Reference: PipeGCN, Section 3.4, for features and gradients alike.
    """

    def __init__(self, smoothing: float):
        self._smoothing = smoothing
        self._mean: torch.Tensor | None = None
        self.decoded = torch.float32     # type of rows from messages; float16 where width 16 is float16, not bfloat16

    def apply(self, arrival: Arrival) -> None:
        messages = arrival.messages
        sizes = [len(listed) for listed in messages.receive_rows]
        fresh = empty((sum(sizes), messages.dim), self.decoded, arrival.device)
        for listed, order, layout, buffer, key, rows in zip(messages.receive_rows, messages.receive_order,
                                                            messages.receive_layouts, arrival.receive, arrival.keys,
                                                            fresh.split(sizes), strict=True):
            if len(listed):
                dequantize_rows(buffer, order, listed.node_id, layout, rows, key=key)
        fresh = fresh.float()
        self._mean = fresh if self._mean is None else self._mean.lerp_(fresh, 1.0 - self._smoothing)

    def place(self, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
        _place(self._mean, messages, rows, accumulate)

    @property
    def num_bytes(self) -> int:
        return _bytes_of(self._mean)

    @property
    def num_rows(self) -> int:
        return _rows_of(self._mean)

    def state(self) -> State:
        return {} if self._mean is None else {"mean": on_host(self._mean)}

    def restore(self, state: State, device: torch.device) -> None:
        if state:
            self._mean = table_of(state["mean"], device)


def _place(table: torch.Tensor, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
    pieces = table.split([len(listed) for listed in messages.receive_rows])
    for listed, piece in zip(messages.receive_rows, pieces, strict=True):
        index = on_device(listed.index, rows).long()
        if accumulate:
            rows.index_add_(0, index, piece.to(rows.dtype))
        else:
            rows.index_copy_(0, index, piece.to(rows.dtype))


def _rows_of(table: torch.Tensor | None) -> int:
    return 0 if table is None else len(table)


def _bytes_of(table: torch.Tensor | None) -> int:
    return 0 if table is None else 4 * table.numel()


class Movement(Stateful):
    """Compares a sample of the sent rows with the same rows one and two epochs earlier.

    sums : (NUM_SUMS,) float64 tensor      over the sample: squared values, squared change over one epoch, over two, and
                                           squared difference of these two per row (the variance of their difference);
                                           0 before two epochs have passed
    """

    def __init__(self) -> None:
        self._earlier: list[torch.Tensor] = []     # newest first
        self._index: np.ndarray | None = None
        self.sums = torch.zeros(NUM_SUMS, dtype=torch.float64)

    def note(self, rows: torch.Tensor, sent: np.ndarray) -> None:
        """Measure the rows (n, dim) of an epoch; the sample is spread evenly over `sent`, (num_sent,) int32."""
        if self._index is None or len(self._index) != min(len(sent), SAMPLED_ROWS):
            self._index, self._earlier = sent[spread(len(sent))], []
        now = rows.detach()[on_device(self._index, rows).long()].float()
        before = [table for table in self._earlier if table.shape == now.shape]
        if len(before) == EPOCHS_BACK:
            once, twice = (square_sums(now - table) for table in before)
            self.sums = torch.stack([square_sums(now).sum(), once.sum(), twice.sum(), (twice - once).square().sum()])
        else:
            self.sums = torch.zeros(NUM_SUMS, dtype=torch.float64, device=now.device)
        self._earlier = [now, *before[:EPOCHS_BACK - 1]]

    @property
    def num_bytes(self) -> int:
        return sum(4 * table.numel() for table in self._earlier)

    def state(self) -> State:
        return {"index": np.empty(0, np.int32) if self._index is None else self._index, "sums": on_host(self.sums),
                **{f"rows-{age}": on_host(table) for age, table in enumerate(self._earlier)}}

    def restore(self, state: State, device: torch.device) -> None:
        names = [name for name in (f"rows-{age}" for age in range(EPOCHS_BACK)) if name in state]
        self._earlier = [table_of(state[name], device) for name in names]
        self.sums = torch.from_numpy(np.array(state["sums"], np.float64)).to(device)
        self._index = np.ascontiguousarray(state["index"], np.int32) if names else None


def spread(num_sent: int) -> np.ndarray:
    return np.arange(min(num_sent, SAMPLED_ROWS)) * num_sent // max(1, min(num_sent, SAMPLED_ROWS))


def square_sums(rows: torch.Tensor) -> torch.Tensor:
    return rows.double().square().sum(1)
