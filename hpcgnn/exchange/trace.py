"""Trace: the ranges of the rows that an exchange sent, read back from the parameters of its messages.

A row of affine codes in b bits has range step * (2**b - 1). Solvers estimate from it the variance at other widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """Ranges of the rows that one exchange of an epoch sent, in all of its steps.

    The error of a rotated row depends on its norm. Its range is defined through the norm so that the variance formula
    of affine codes at one bit holds: dim * row_range**2 / 6 = |row|**2; see `hpcgnn.methods.problem.variance_factors`.
    """

    dim: int
    position: tuple[np.ndarray, ...]   # (n,) int32 per peer, see `RowList`
    # (n,) float32 per peer, largest minus smallest value of each row, as the message rounds it
    row_range: tuple[np.ndarray, ...]
    code: str = "affine"               # code of the messages; see `MessageLayout`

    @classmethod
    def read(cls, messages: Messages, send: list[np.ndarray]) -> Trace:
        """Read ranges from messages, one uint8 array per peer, or from their parameters only."""
        ranges = tuple(_ranges(layout, buffer) for layout, buffer in zip(messages.send_layouts, send, strict=True))
        return cls(messages.dim, tuple(rows.position for rows in messages.send_rows), ranges,
                   messages.send_layouts[0].code)

    def state(self) -> State:
        return {"dim": self.dim, "code": self.code, "position": joined(self.position),
                "row_range": joined(self.row_range)}

    @classmethod
    def restored(cls, state: State) -> Trace:
        return cls(int(state["dim"]), tuple(split(state["position"])), tuple(split(state["row_range"])),
                   str(state["code"]))


@dataclass(frozen=True)
class _Found:
    dim: int
    code: str
    # peer -> position and range of the rows of each message to it; an epoch of several steps sends several
    by_peer: dict[int, list[tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)

    def as_trace(self, peers: Sequence[int]) -> Trace:
        found = [_joined(self.by_peer.get(peer, [_NOTHING])) for peer in peers]
        return Trace(self.dim, tuple(position for position, _ in found), tuple(row_range for _, row_range in found),
                     self.code)


_NOTHING = np.empty(0, np.int32), np.empty(0, np.float32)


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    # Rows that come again in the backward pass are traced twice; the last time counts.
    position, row_range = (np.concatenate(arrays)[::-1] for arrays in zip(*parts, strict=True))
    position, last = np.unique(position, return_index=True)
    return position, row_range[last]


def _ranges(layout: MessageLayout, buffer: np.ndarray) -> np.ndarray:
    _, step = parameters_of(buffer, layout)
    return step * _ranges_a_step(layout)


def _ranges_a_step(layout: MessageLayout) -> np.ndarray:
    bit_width = np.minimum(layout.bit_width, LARGEST_PARAMETER_WIDTH)
    if layout.code == "affine":
        return (2.0 ** bit_width - 1).astype(np.float32)
    norm = np.zeros(LARGEST_PARAMETER_WIDTH + 1)
    for bits, in_steps in ROTATED_NORM.items():
        norm[bits] = in_steps
    # |row| = norm * step * sqrt(dim), and it is recorded as the range |row| * sqrt(6 / dim).
    return (np.sqrt(6) * norm[bit_width]).astype(np.float32)


class Tracer:
    """Notes the ranges of sent rows in epochs that are traced.

    peers : all ranks that rows may be sent to
    """

    def __init__(self, streams: Streams, peers: Sequence[int]):
        self._streams, self._peers, self.is_traced = streams, peers, False
        self._found: dict[tuple[int, int], _Found] = {}
        self._unread: list[tuple[Messages, CounterKey, torch.Tensor]] = []

    def begin_epoch(self, is_traced: bool) -> None:
        """Trace the next epoch, or keep the ranges of the last traced one."""
        self.is_traced = is_traced
        if is_traced:
            self._found, self._unread = {}, []

    def note(self, messages: Messages, key: CounterKey, send: list[Buffer]) -> None:
        """Note the messages of one exchange in an epoch that is traced, encoded in their buffers."""
        if isinstance(send[0], np.ndarray):
            self._add(key, messages, send)
            return
        # The device's kernels are only queued; their parameters are kept there and read when the epoch has ended.
        heads = [buffer[:layout.parameter_bytes] for buffer, layout in zip(send, messages.send_layouts, strict=True)]
        self._unread.append((messages, key, torch.cat(heads)))

    def _add(self, key: CounterKey, messages: Messages, send: list[np.ndarray]) -> None:
        trace = Trace.read(messages, send)
        found = self._found.setdefault((key.layer, key.purpose), _Found(trace.dim, trace.code))
        for peer, position, row_range in zip(messages.peers, trace.position, trace.row_range, strict=True):
            if len(position):
                found.by_peer.setdefault(peer, []).append((position, row_range))

    def traces(self) -> dict[tuple[int, int], Trace]:
        """Return the Trace of each (layer, purpose) in the last traced epoch. Waits for a device."""
        self._streams.message.join()
        unread, self._unread = self._unread, []
        for messages, key, parameters in unread:
            sizes = [layout.parameter_bytes for layout in messages.send_layouts]
            heads = np.split(parameters.cpu().numpy(), np.cumsum(sizes)[:-1])
            self._add(key, messages, heads)
        return {place: found.as_trace(self._peers) for place, found in self._found.items()}
