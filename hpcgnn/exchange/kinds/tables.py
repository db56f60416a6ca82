"""Rows kept on both sides of an exchange: the reconstruction that predictive messages correct, and PipeGCN's running
mean of stale rows.
"""

from __future__ import annotations

import torch

from hpcgnn.exchange.arrival import Arrival, ReceivedTable
from hpcgnn.exchange.codec import Messages, no_bad_rows
from hpcgnn.exchange.state import State, Stateful, on_host, table_of
from hpcgnn.ops.arena import empty
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.ops.quantization import Buffer, dequantize_rows, quantize_rows, start_quantizing


class Reconstruction(Stateful):
    """The rows of an exchange as its receiver has them, (num_rows, dim) float32 in the order of the messages.

    Sender and receiver hold one each and change it by the same messages with the same arithmetic, so they are equal to
    the last bit. It begins at zero, and again where an epoch is missing.
    """

    def __init__(self) -> None:
        self._rows: torch.Tensor | None = None
        self._epoch = -1

    def before(self, epoch: int, num_rows: int, dim: int, device: torch.device) -> torch.Tensor:
        """Return the rows that the message of `epoch` corrects."""
        if self._rows is None or self._epoch != epoch - 1 or self._rows.shape != (num_rows, dim):
            self._rows = empty((num_rows, dim), torch.float32, device).zero_()
        self._epoch = epoch
        return self._rows

    @property
    def rows(self) -> torch.Tensor | None:
        return self._rows

    @property
    def num_bytes(self) -> int:
        """See `Stateful`."""
        return _bytes_of(self._rows)

    def state(self) -> State:
        """See `Stateful`."""
        return {} if self._rows is None else {"epoch": self._epoch, "rows": on_host(self._rows)}

    def restore(self, state: State, device: torch.device) -> None:
        """See `Stateful`."""
        if state:
            self._rows, self._epoch = table_of(state["rows"], device), int(state["epoch"])


def encode_difference(messages: Messages, rows: torch.Tensor, key: CounterKey, buffers: list[Buffer],
                      sent: Reconstruction) -> torch.Tensor | None:
    """Quantize what the receiver's reconstruction lacks of each row to send, and correct the sender's copy of it.

    Rounding is to the nearest: what a message leaves out is part of the next difference, so errors don't add up, but
    only a quantizer whose error is below its input lets them fade (Richtarik et al., NeurIPS 2021, EF21). The range of
    a difference shrinks as training settles, and the error with it, at the same width.

    Returns
    -------
    None, or what is still to be read of a device's rows; see `RowChecks`
    """
    known = sent.before(key.epoch, sum(map(len, messages.send_rows)), rows.shape[1], rows.device)
    found = no_bad_rows(messages, rows) if isinstance(buffers[0], torch.Tensor) else None
    for place, held in enumerate(known.split([len(listed) for listed in messages.send_rows])):
        listed, order, layout = messages.send_rows[place], messages.send_order[place], messages.send_layouts[place]
        if not len(listed):
            continue
        difference = rows[on_device(listed.index, rows).long()].float() - held
        arguments = difference, order, listed.node_id, layout, key, buffers[place]
        if found is None:
            quantize_rows(*arguments, rounding="nearest")
        else:
            start_quantizing(*arguments, found[place:place + 1], rounding="nearest")
        dequantize_rows(buffers[place], order, listed.node_id, layout, held, accumulate=True, key=key)
    return found


class PredictedRows(ReceivedTable):
    """Received rows of predictive messages; see `ReceivedTable`."""

    def __init__(self) -> None:
        self.sent, self._received = Reconstruction(), Reconstruction()

    def apply(self, arrival: Arrival) -> None:
        """Correct the reconstruction."""
        messages = arrival.messages
        sizes = [len(listed) for listed in messages.receive_rows]
        known = self._received.before(arrival.epoch, sum(sizes), messages.dim, arrival.device)
        for listed, order, layout, buffer, key, held in zip(messages.receive_rows, messages.receive_order,
                                                            messages.receive_layouts, arrival.receive, arrival.keys,
                                                            known.split(sizes), strict=True):
            if len(listed):
                dequantize_rows(buffer, order, listed.node_id, layout, held, accumulate=True, key=key)

    def place(self, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
        """Write the reconstruction to its rows, or add it."""
        _place(self._received.rows, messages, rows, accumulate)

    @property
    def num_bytes(self) -> int:
        """See `Stateful`."""
        return self.sent.num_bytes + self._received.num_bytes

    @property
    def num_rows(self) -> int:
        """See `ReceivedTable`."""
        return _rows_of(self._received.rows)

    def state(self) -> State:
        """See `Stateful`."""
        return {"sent": self.sent.state(), "received": self._received.state()}

    def restore(self, state: State, device: torch.device) -> None:
        """See `Stateful`."""
        self.sent.restore(state["sent"], device)
        self._received.restore(state["received"], device)


class SmoothedRows(ReceivedTable):
    """Running mean of received rows; see `ReceivedTable`.

    Reference: PipeGCN, Section 3.4, of features and of gradients alike.
    """

    def __init__(self, smoothing: float):
        self._smoothing = smoothing
        self._mean: torch.Tensor | None = None

    def apply(self, arrival: Arrival) -> None:
        """Move the mean towards what arrived; the first rows are the mean."""
        messages = arrival.messages
        sizes = [len(listed) for listed in messages.receive_rows]
        fresh = empty((sum(sizes), messages.dim), torch.float32, arrival.device)
        for listed, order, layout, buffer, key, rows in zip(messages.receive_rows, messages.receive_order,
                                                            messages.receive_layouts, arrival.receive, arrival.keys,
                                                            fresh.split(sizes), strict=True):
            if len(listed):
                dequantize_rows(buffer, order, listed.node_id, layout, rows, key=key)
        self._mean = fresh if self._mean is None else self._mean.lerp_(fresh, 1.0 - self._smoothing)

    def place(self, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
        """Write the mean to its rows, or add it."""
        _place(self._mean, messages, rows, accumulate)

    @property
    def num_bytes(self) -> int:
        """See `Stateful`."""
        return _bytes_of(self._mean)

    @property
    def num_rows(self) -> int:
        """See `ReceivedTable`."""
        return _rows_of(self._mean)

    def state(self) -> State:
        """See `Stateful`."""
        return {} if self._mean is None else {"mean": on_host(self._mean)}

    def restore(self, state: State, device: torch.device) -> None:
        """See `Stateful`."""
        if state:
            self._mean = table_of(state["mean"], device)


def _rows_of(table: torch.Tensor | None) -> int:
    return 0 if table is None else len(table)


def _bytes_of(table: torch.Tensor | None) -> int:
    return 0 if table is None else 4 * table.numel()


def _place(table: torch.Tensor, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
    """Rows of a table to their places, in the order of the ranks; a message names a row at most once."""
    pieces = table.split([len(listed) for listed in messages.receive_rows])
    for listed, piece in zip(messages.receive_rows, pieces, strict=True):
        index = on_device(listed.index, rows).long()
        if accumulate:
            rows.index_add_(0, index, piece.to(rows.dtype))
        else:
            rows.index_copy_(0, index, piece.to(rows.dtype))
