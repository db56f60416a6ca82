"""`hpcgnn bench exchange`: an exchange of rows on all ranks at each bit-width.

Its ceiling is a copy of the same bytes in memory; Sendrecvs of them are timed too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn.bench.place import Place, Work, copy_stream
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.exchange.codec import MessageArena
from hpcgnn.exchange.plan import ring_rounds
from hpcgnn.exchange.transfer import EXCHANGES, HostDelivery, Transfer
from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows
from hpcgnn.widths import BIT_WIDTHS

TAG = 7
PLAIN = "Sendrecv"
KEY = CounterKey(0, 0, FORWARD, 0)


@dataclass(frozen=True)
class RanksPlace(Place):
    """Times work that all ranks of `comm` start at once; the slowest rank counts."""

    comm: Any = None

    def seconds_of(self, work: Work, is_hot: bool = False) -> float:
        """Collective: the same seconds on all ranks, so that all repeat equally often."""
        self.comm.Barrier()
        return max(self.comm.allgather(super().seconds_of(work, is_hot)))


@dataclass
class ExchangeBenchmark:
    """One rank's share of `hpcgnn bench exchange`.

    Each rank sends `num_rows` rows of `width` columns to every other rank; there are at least two ranks.
    """

    place: RanksPlace
    num_rows: int
    width: int = 256
    arena: MessageArena = field(default_factory=MessageArena)

    @property
    def comm(self) -> Any:
        return self.place.comm

    def measure(self) -> Iterator[Measurement]:
        """Collective: measure quantizing, each kind of exchange, and dequantizing, at each width."""
        rows = self.place.random_rows(self.num_rows, self.width, seed=self.comm.rank)
        received = self.place.empty_rows(self.num_rows, self.width)
        for bits in BIT_WIDTHS:
            yield from self._measure_width(bits, rows, received)

    def _measure_width(self, bits: int, rows: torch.Tensor, received: torch.Tensor) -> Iterator[Measurement]:
        layout = MessageLayout.build(np.full(self.num_rows, bits, np.uint8), self.width)
        sizes = tuple(0 if peer == self.comm.rank else layout.num_bytes for peer in range(self.comm.size))
        send, receive = self.arena.slices(sizes, sizes)
        index, node_id = np.arange(self.num_rows, dtype=np.int32), np.arange(self.num_rows)
        peers = [peer for peer in range(self.comm.size) if peer != self.comm.rank]

        def pack() -> None:
            for peer in peers:
                quantize_rows(rows, index, node_id, layout, KEY, send[peer])

        def unpack() -> None:
            for peer in peers:
                dequantize_rows(receive[peer], index, node_id, layout, received)

        group, size = f"{bits} bit", f"{self.num_rows:,} x {self.width}"
        self.place.begin(f"{group}: {size}")
        values, moved = rows.nbytes * len(peers) / 1e9, layout.num_bytes * len(peers) / 1e9
        yield Measurement(group, f"quantize {size}", values, "GB/s", self.place.interleave({OURS: pack}))
        copies = self._copies(send, receive)
        seconds = self.place.interleave({**self.exchanges(send, receive), **copies})
        ceiling = min((seconds[name] for name in copies), key=statistics.median)
        for name in EXCHANGES:
            yield Measurement(group, f"{name} {size}", moved, "GB/s",
                              {OURS: seconds[name], CEILING: ceiling, PLAIN: seconds[PLAIN]})
        yield Measurement(group, f"dequantize {size}", values, "GB/s", self.place.interleave({OURS: unpack}))

    def exchanges(self, send: list[np.ndarray], receive: list[np.ndarray]) -> dict[str, Callable[[], None]]:
        peers = range(self.comm.size)
        rounds = ring_rounds(self.comm.rank, self.comm.size, peers)

        def plain() -> None:
            for destination, source in rounds:
                self.comm.Sendrecv(send[destination], destination, TAG, receive[source], source, TAG)

        def ours(transfer: type[Transfer]) -> None:
            transfer(HostDelivery(self.comm, peers, send, receive, TAG), rounds).wait()

        return {PLAIN: plain, **{name: partial(ours, transfer) for name, transfer in EXCHANGES.items()}}

    def _copies(self, send: list[np.ndarray], receive: list[np.ndarray]) -> dict[str, Callable[[], object]]:
        # Every message must be copied once: the ceiling. Streaming is fastest past the cache, the other way within it.
        pairs = list(zip(receive, send, strict=True))
        streams = [copy_stream(*pair) for pair in pairs]

        def copy() -> None:
            for place, message in pairs:
                np.copyto(place, message)

        return {"streamed copy": lambda: [stream() for stream in streams], "copy": copy}
