"""Trace: the ranges of the rows that an exchange sent, read back from its messages.

What they are for is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.exchange.codec import Messages
from hpcgnn.exchange.state import State, joined, split
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.quantization import Buffer, parameters_of
from hpcgnn.ops.streams import Streams


@dataclass(frozen=True)
class Trace:
    """Ranges of the rows that one exchange of an epoch sent.

    Attributes
    ----------
    dim : int
    position : tuple of (n,) int32, one a rank      see `RowList`
    row_range : tuple of (n,) float32               largest minus smallest value of each row, as the message rounds it
    """

    dim: int
    position: tuple[np.ndarray, ...]
    row_range: tuple[np.ndarray, ...]

    @classmethod
    def read(cls, messages: Messages, send: list[np.ndarray]) -> Trace:
        """Read the ranges of rows back from their messages (one uint8 array a rank), or from the parameters alone."""
        ranges = []
        for layout, buffer in zip(messages.send_layouts, send, strict=True):
            _, step = parameters_of(buffer, layout)
            ranges.append(step * (2.0 ** np.minimum(layout.bit_width, 8) - 1).astype(np.float32))
        return cls(messages.dim, tuple(rows.position for rows in messages.send_rows), tuple(ranges))

    def state(self) -> State:
        """Return the ranges as arrays, from which `restored` rebuilds them."""
        return {"dim": self.dim, "position": joined(self.position), "row_range": joined(self.row_range)}

    @classmethod
    def restored(cls, state: State) -> Trace:
        """Rebuild the trace from what `state` returned."""
        return cls(int(state["dim"]), tuple(split(state["position"])), tuple(split(state["row_range"])))

    def joined(self, other: Trace) -> Trace:
        """Join both traces: for each rank that of `other` where it sent rows there, else this one's."""
        last = [other if len(position) else self for position in other.position]
        return Trace(self.dim, tuple(trace.position[rank] for rank, trace in enumerate(last)),
                     tuple(trace.row_range[rank] for rank, trace in enumerate(last)))


class Tracer:
    """Note the ranges of the rows that the exchanges of one epoch send, where the epoch's plan asks for it."""

    def __init__(self, streams: Streams):
        self._streams, self._is_traced = streams, False
        self._traces: dict[tuple[int, int], Trace] = {}
        self._unread: list[tuple[Messages, CounterKey, torch.Tensor]] = []

    def begin_epoch(self, is_traced: bool) -> None:
        """Note the next epoch, or leave what the last traced one sent as it is."""
        self._is_traced = is_traced
        if is_traced:
            self._traces, self._unread = {}, []

    def note(self, messages: Messages, key: CounterKey, send: list[Buffer]) -> None:
        """Note the messages of one exchange, once they are encoded in their buffers."""
        if not self._is_traced:
            return
        if isinstance(send[0], np.ndarray):
            self._add(key, Trace.read(messages, send))
            return
        # The device's kernels are only queued; their parameters are kept there and read when the epoch has ended.
        heads = [buffer[:layout.parameter_bytes] for buffer, layout in zip(send, messages.send_layouts, strict=True)]
        self._unread.append((messages, key, torch.cat(heads)))

    def _add(self, key: CounterKey, trace: Trace) -> None:
        before = self._traces.get((key.layer, key.purpose))
        self._traces[key.layer, key.purpose] = trace if before is None else before.joined(trace)

    def traces(self) -> dict[tuple[int, int], Trace]:
        """Wait for a device, and return the Trace of each (layer, purpose) in the last epoch that was traced."""
        self._streams.message.join()
        unread, self._unread = self._unread, []
        for messages, key, parameters in unread:
            sizes = [layout.parameter_bytes for layout in messages.send_layouts]
            heads = np.split(parameters.cpu().numpy(), np.cumsum(sizes)[:-1])
            self._add(key, Trace.read(messages, heads))
        return self._traces
