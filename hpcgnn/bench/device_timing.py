"""Seconds on a GPU by its own events, and Device, what every measurement there is given.

Nothing here knows what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from hpcgnn.bench.device_chip import Chip
from hpcgnn.bench.timing import FEWEST_REPETITIONS, Effort, Measurement

FLUSH_BYTES = 1 << 30       # written before each repetition
BUSY_SECONDS = 2e-3         # that the writing takes at least: Python queues a launch in a tenth of it
L2_MULTIPLE = 4
LONGEST_REASON = 120        # characters of a refusal

Contestants = dict[str, Callable[[], object]]


class Timer(Protocol):
    """Times contestants; with `is_hot` the cache keeps what the work touches."""

    def __call__(self, contestants: Contestants, is_hot: bool = False) -> dict[str, list[float]]: ...


class EventTimer:
    """Seconds between two events on torch's current stream, round after round over all contestants.

    Before each repetition memory beyond the L2 cache is written, as often as keeps the device busy while Python queues
    the work: the cache holds nothing that the work reads, and the seconds are the device's and not the launch's.
    """

    def __init__(self, effort: Effort, l2_bytes: int):
        self._effort = effort
        self._flushed = torch.empty(max(FLUSH_BYTES, L2_MULTIPLE * l2_bytes), dtype=torch.uint8, device="cuda")
        self._num_flushes = 1
        self._flush()
        self._num_flushes = max(1, math.ceil(BUSY_SECONDS / _seconds_between_events(self._flush)))

    def __call__(self, contestants: Contestants, is_hot: bool = False) -> dict[str, list[float]]:
        for work in contestants.values():
            work()    # kernels are compiled, plans copied, memory allocated
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(self._effort.repeat):
            for name, work in contestants.items():
                spent = seconds[name]
                if len(spent) < FEWEST_REPETITIONS or sum(spent) <= self._effort.seconds:
                    spent.append(self._seconds_of(work, is_hot))
        return seconds

    def _seconds_of(self, work: Callable[[], object], is_hot: bool) -> float:
        self._flush()
        if is_hot:
            work()
        return _seconds_between_events(work)

    def _flush(self) -> None:
        for _ in range(self._num_flushes):
            self._flushed.zero_()


def _seconds_between_events(work: Callable[[], object]) -> float:
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    work()
    ended.record()
    ended.synchronize()
    return started.elapsed_time(ended) / 1e3


@dataclass(frozen=True)
class Device:
    """Names the device that measurements run on, `place` to torch, and times contestants there."""

    chip: Chip
    place: str
    timer: Timer

    def measure(self, group: str, case: str, amount: float, unit: str, contestants: Contestants,
                remarks: list[str] | None = None, is_hot: bool = False) -> Measurement:
        """Time the contestants of one piece of work."""
        return Measurement(group, case, amount, unit, self.timer(contestants, is_hot), remarks or [])

    def random_rows(self, num_rows: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """(num_rows, dim) standard normal values."""
        return torch.randn(num_rows, dim, dtype=dtype, device=self.place)

    def free_bytes(self) -> int:
        """Memory that new tensors may take."""
        if self.place == "cpu":
            return self.chip.memory_bytes
        torch.cuda.empty_cache()    # what torch keeps of tensors that are gone
        return torch.cuda.mem_get_info()[0]


def refusal(work: Callable[[], object]) -> str | None:
    """Try the work; return the peer's own words where it can't do it, else None."""
    try:
        work()
    except RuntimeError as reason:
        return str(reason).strip().partition("\n")[0][:LONGEST_REASON]
    return None


def admit(peers: Contestants, case: str) -> tuple[Contestants, list[str]]:
    """The peers that can do the work, and a remark on each that can't."""
    refusals = {name: refusal(work) for name, work in peers.items()}
    return ({name: work for name, work in peers.items() if refusals[name] is None},
            [f"{name} refuses {case}: {reason}" for name, reason in refusals.items() if reason is not None])
