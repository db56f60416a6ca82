"""Traffic: bytes and seconds of exchanges on one rank, counted where they are spent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import numpy as np

from hpcgnn.exchange.state import State
from hpcgnn.widths import BIT_WIDTHS

SUMS = ("payload_bytes", "parameter_bytes", "num_values", "exchange_seconds", "blocked_seconds", "travel_seconds",
        "hidden_seconds", "quantize_seconds", "width_rows", "sum_bytes", "shared_bytes")


def _no_rows() -> np.ndarray:
    return np.zeros(len(BIT_WIDTHS), np.int64)


@dataclass
class Traffic:
    """Counts since the last `take`.

    Messages that travel at the same time count once in the seconds; messages still on their way at a `take` count on.
    The carrier's thread may call `move`.
    """

    payload_bytes: int = 0
    parameter_bytes: int = 0
    num_values: int = 0
    exchange_seconds: float = 0.0                       # seconds in MPI calls
    blocked_seconds: float = 0.0                        # part of these, waiting for messages or sums
    travel_seconds: float = 0.0                         # with some message on its way
    hidden_seconds: float = 0.0                         # part of these, not blocked
    quantize_seconds: float = 0.0                       # encoding and decoding
    staleness: int = 0                                  # age of the oldest row read, in epochs
    width_rows: np.ndarray = field(default_factory=_no_rows)  # (len(BIT_WIDTHS),) int64, rows sent at each width
    sent_by_peer: dict[int, int] = field(default_factory=dict)  # rank -> bytes sent to that rank
    sum_bytes: int = 0                                  # handed to MPI for sums over the ranks; not in the payload
    shared_bytes: int = 0                               # written to memory shared within a node; not in the payload
    _num_travelling: int = field(default=0, repr=False)
    _num_waiting: int = field(default=0, repr=False)
    _looked_at: float = field(default_factory=time.perf_counter, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def move(self, travelling: int = 0, waiting: int = 0) -> None:
        """Note by 1 that an exchange begins to travel or to be waited for, by -1 that this ends."""
        with self._lock:
            now = time.perf_counter()
            if self._num_travelling:
                self.travel_seconds += now - self._looked_at
                if not self._num_waiting:
                    self.hidden_seconds += now - self._looked_at
            self._looked_at = now
            self._num_travelling += travelling
            self._num_waiting += waiting

    def note_age(self, epochs: int) -> None:
        """Note that rows of that age are read."""
        self.staleness = max(self.staleness, epochs)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the seconds of a block as blocked."""
        started = time.perf_counter()
        self.move(waiting=1)
        try:
            yield
        finally:
            self.move(waiting=-1)
            self.blocked_seconds += time.perf_counter() - started

    def restart_clock(self) -> None:
        """Drop the seconds of travel so far, which were not part of an epoch."""
        self.move()
        self.travel_seconds = self.hidden_seconds = 0.0

    def take(self) -> Traffic:
        """Return the counts and start again from zero."""
        self.move()
        taken = replace(self)
        fresh = Traffic()
        for own in fields(self):
            if not own.name.startswith("_"):      # messages on their way stay so
                setattr(self, own.name, getattr(fresh, own.name))
        return taken

    def plus(self, earlier: Traffic) -> Traffic:
        """Return the sum of both counts; staleness is the larger."""
        total = {name: getattr(self, name) + getattr(earlier, name) for name in SUMS}
        peers = self.sent_by_peer.keys() | earlier.sent_by_peer.keys()
        sent = {peer: self.sent_by_peer.get(peer, 0) + earlier.sent_by_peer.get(peer, 0) for peer in sorted(peers)}
        return Traffic(**total, staleness=max(self.staleness, earlier.staleness), sent_by_peer=sent)

    def state(self) -> State:
        peers = np.array(sorted(self.sent_by_peer.items()), np.int64).reshape(-1, 2)
        return {**{name: getattr(self, name) for name in SUMS}, "staleness": self.staleness, "sent_by_peer": peers}

    @classmethod
    def of_state(cls, state: State) -> Traffic:
        state = {"shared_bytes": 0, **state}      # earlier versions had none
        sums = {name: state[name] if name == "width_rows" else type(getattr(cls, name))(state[name]) for name in SUMS}
        return cls(**sums, staleness=int(state["staleness"]), sent_by_peer=dict(state["sent_by_peer"].tolist()))


class ControlTraffic:
    """Counts messages between ranks for decisions on widths.

    num_swaps : int       swaps since the last `take`; the same on all ranks
    sent_bytes : int      bytes that this rank handed to MPI in them
    """

    def __init__(self) -> None:
        self.num_swaps = self.sent_bytes = 0

    def count(self, num_bytes: int) -> None:
        self.num_swaps += 1
        self.sent_bytes += num_bytes

    def take(self) -> tuple[int, int]:
        """Return num_swaps and sent_bytes and start again from zero."""
        taken = self.num_swaps, self.sent_bytes
        self.num_swaps = self.sent_bytes = 0
        return taken
