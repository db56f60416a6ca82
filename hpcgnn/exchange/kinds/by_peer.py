"""Exchanges by peer: one round of the ring at a time, so that only one peer's messages and halo rows are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.codec import Messages
from hpcgnn.exchange.plan import NO_ROWS, RowList, Spans
from hpcgnn.ops.arena import empty
from hpcgnn.ops.counter import BACKWARD
from hpcgnn.ops.quantization import MessageLayout


def round_messages(messages: Messages, pair: tuple[int, int], purpose: int, halo_spans: Spans) -> Messages:
    """The messages of one round, cached; `pair` are places of peers, and halo rows count from their owner's first."""
    if pair not in messages.rounds:
        messages.rounds[pair] = _cut_round(messages, pair, purpose, halo_spans)
    return messages.rounds[pair]


def _cut_round(messages: Messages, pair: tuple[int, int], purpose: int, halo_spans: Spans) -> Messages:
    destination, source = pair
    start, stop = halo_spans[destination if purpose == BACKWARD else source]
    sent = _counted_from(messages.send_rows[destination], start if purpose == BACKWARD else 0)
    received = _counted_from(messages.receive_rows[source], 0 if purpose == BACKWARD else start)
    layouts = messages.send_layouts[destination], messages.receive_layouts[source]
    if destination == source:
        return Messages((messages.peers[source],), (sent,), (received,), layouts[:1], layouts[1:], stop - start,
                        messages.dim)
    nothing = MessageLayout.build(np.empty(0, np.uint8), messages.dim)
    return Messages((messages.peers[destination], messages.peers[source]), (sent, NO_ROWS), (NO_ROWS, received),
                    (layouts[0], nothing), (nothing, layouts[1]), stop - start, messages.dim)


def _counted_from(rows: RowList, first: int) -> RowList:
    return replace(rows, index=rows.index - np.int32(first))


class _Rounds:
    def __init__(self, num_rounds: int, start: Callable[[int], Arrival]):
        self._start, self._num_rounds, self._number = start, num_rounds, 0
        self._arrival = start(0) if num_rounds else None

    def poll(self) -> bool:
        return self._arrival is None or self._arrival.poll()

    def _finish_round(self, rows: torch.Tensor) -> None:
        # Read this round before the next one starts, which may reuse the memory of its messages.
        self._arrival.finish(rows)
        self._number += 1
        self._arrival = self._start(self._number) if self._number < self._num_rounds else None


class RowsByPeer(_Rounds):
    """Halo rows of one peer after another; see `hpcgnn.graph.hop.PeerArrival`.

    `sources` are places of peers in ring order; `start` posts the messages of a round, by its number.
    """

    def __init__(self, sources: tuple[int, ...], halo_spans: Spans, dim: int, dtype: torch.dtype,
                 device: torch.device, start: Callable[[int], Arrival]):
        self._sources, self._dim, self._dtype, self._device = sources, dim, dtype, device
        self._num_rows = [stop - start for start, stop in halo_spans]
        super().__init__(len(sources), start)

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        table = empty((max(self._num_rows), self._dim), self._dtype, self._device)
        for source in self._sources:
            rows = table[:self._num_rows[source]]
            self._finish_round(rows)
            yield source, rows


class GradientsByPeer(_Rounds):
    """Gradients on their way home, one peer after another; see `hpcgnn.graph.hop.GradientArrival`."""

    def finish(self, rows: torch.Tensor) -> None:
        while self._arrival is not None:
            self._finish_round(rows)
