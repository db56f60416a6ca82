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
from hpcgnn.ops.quantization import LARGEST_PARAMETER_WIDTH, Buffer, MessageLayout, parameters_of
from hpcgnn.ops.streams import Streams
from hpcgnn.widths import ROTATED_NORM


@dataclass(frozen=True)
class Trace:
    """Ranges of the rows that one exchange of an epoch sent.

    The error of a rotated row depends on its norm alone, which its step tells up to the spread of its columns after the
    rotation. Its range here is the one that yields the norm as affine codes yield their variance at one bit:
    dim * row_range**2 / 6 = |row|**2; see `hpcgnn.adaptive.problem.variance_factors`.

    Attributes
    ----------
    dim : int
    position : tuple of (n,) int32, one a rank      see `RowList`
    row_range : tuple of (n,) float32               largest minus smallest value of each row, as the message rounds it
    code : str                                      of the messages; see `MessageLayout`
    """

    dim: int
    position: tuple[np.ndarray, ...]
    row_range: tuple[np.ndarray, ...]
    code: str = "affine"

    @classmethod
    def read(cls, messages: Messages, send: list[np.ndarray]) -> Trace:
        """Read the ranges of rows back from their messages (one uint8 array a rank), or from the parameters alone."""
        ranges = []
        for layout, buffer in zip(messages.send_layouts, send, strict=True):
            _, step = parameters_of(buffer, layout)
            ranges.append(step * _ranges_a_step(layout))
        return cls(messages.dim, tuple(rows.position for rows in messages.send_rows), tuple(ranges),
                   messages.send_layouts[0].code)

    def state(self) -> State:
        """Return the ranges as arrays, from which `restored` rebuilds them."""
        return {"dim": self.dim, "code": self.code, "position": joined(self.position),
                "row_range": joined(self.row_range)}

    @classmethod
    def restored(cls, state: State) -> Trace:
        """Rebuild the trace from what `state` returned."""
        return cls(int(state["dim"]), tuple(split(state["position"])), tuple(split(state["row_range"])),
                   str(state["code"]))

    def joined(self, other: Trace) -> Trace:
        """Join both traces: for each rank that of `other` where it sent rows there, else this one's."""
        last = [other if len(position) else self for position in other.position]
        return Trace(self.dim, tuple(trace.position[rank] for rank, trace in enumerate(last)),
                     tuple(trace.row_range[rank] for rank, trace in enumerate(last)), self.code)


def _ranges_a_step(layout: MessageLayout) -> np.ndarray:
    """Return (num_rows,) float32, how many steps the range of each row has; any number for rows without a step."""
    bit_width = np.minimum(layout.bit_width, LARGEST_PARAMETER_WIDTH)
    if layout.code == "affine":
        return (2.0 ** bit_width - 1).astype(np.float32)
    norm = np.zeros(LARGEST_PARAMETER_WIDTH + 1)
    for bits, in_steps in ROTATED_NORM.items():
        norm[bits] = in_steps
    # |row| = norm * step * sqrt(dim), and the range that stands for it is |row| * sqrt(6 / dim).
    return (np.sqrt(6) * norm[bit_width]).astype(np.float32)


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
