"""`PhaseClock` times the epochs of one training phase by phase, in the same way for every contestant.

A training has phases, for example 3 epochs without dropout, 2 to warm up, 10 timed ones, 10 more in tf32, and 2 under
torch's profiler. The training calls `start` before its first epoch and `tick` after each. `tick` gets a loss that was
read from the device, so all work of the epoch has ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

PROFILED = "profile"
TF32 = "tf32"
LONGEST, LONGEST_GAPS, LONGEST_NAME = 20, 5, 90      # kept in a profile: kernels, gaps, characters of a kernel's name


@dataclass(frozen=True)
class Phase:
    """Some epochs of a training; the phase PROFILED runs under torch's profiler."""

    name: str
    epochs: int
    dropout: float

    @property
    def is_tf32(self) -> bool:
        """Whether it is timed in tf32, or the warm-up of that."""
        return self.name.endswith(TF32)


@dataclass
class PhaseClock:
    phases: tuple[Phase, ...]
    device: str
    set_dropout: Callable[[float], None]                             # sets the probability in the model
    # seconds, losses: of each phase's epochs, by name
    seconds: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    # the profile of PROFILED, see `profile_record`; has only `fault` if torch's profiler fails
    profile: dict[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0  # peak of the device's memory from the first epoch to the profile; 0 on the host
    _number: int = -1
    _left: int = 0
    _profiler: Any = None
    _started: float = 0.0

    @property
    def num_epochs(self) -> int:
        return sum(phase.epochs for phase in self.phases)

    @property
    def is_done(self) -> bool:
        return self._number == len(self.phases)

    @property
    def phase(self) -> Phase | None:
        return None if self.is_done else self.phases[self._number]

    def start(self) -> None:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self._enter_next()
        self._restart()

    def tick(self, loss: float) -> None:
        spent, phase = time.perf_counter() - self._started, self.phases[self._number]
        self.seconds.setdefault(phase.name, []).append(spent)
        self.losses.setdefault(phase.name, []).append(loss)
        self._left -= 1
        if not self._left:
            self._leave(phase)
            self._enter_next()
        self._restart()

    def stop(self) -> None:
        """Leave the current phase if a training ends early, and restore torch's settings."""
        torch.set_float32_matmul_precision("highest")
        if self._profiler is not None:
            self._profiler.__exit__(None, None, None)
            self._profiler = None

    def _enter_next(self) -> None:
        self._number += 1
        if self.is_done:
            self.stop()
            return
        phase = self.phases[self._number]
        self._left = phase.epochs
        self.set_dropout(phase.dropout)
        # Products of float32 by tensor cores, with 10 bits of mantissa; sums stay float32.
        torch.set_float32_matmul_precision("high" if phase.is_tf32 else "highest")
        if phase.name == PROFILED:
            activity = ProfilerActivity.CUDA if self.device == "cuda" else ProfilerActivity.CPU
            with self._noting_faults():
                profiler = profile(activities=[activity])
                profiler.__enter__()
                self._profiler = profiler

    def _leave(self, phase: Phase) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            with self._noting_faults():
                profiler.__exit__(None, None, None)
                self.profile = profile_record(profiler, phase.epochs, self.device)
        elif self.device == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated()

    @contextmanager
    def _noting_faults(self) -> Iterator[None]:
        # A timed training goes on without a profile.
        try:
            yield
        except Exception as reason:      # from CUPTI, Kineto or what they read
            self.profile = {"fault": f"{type(reason).__name__}: {reason}"}

    def _restart(self) -> None:
        self._started = time.perf_counter()


def profile_record(profiler: profile, num_epochs: int, device: str) -> dict[str, Any]:
    """Where the time of an epoch goes: on a device, by kernel and copy; on the host, by operation of torch.

    Returns
    -------
    dict, per epoch: `busy_seconds` (0 on the host), `num_starts` of kernels and copies, `kernels`: [name, starts,
    seconds] of the longest, and `gaps`: [seconds, what ends, what begins] of the longest waits
    """
    if device != "cuda":
        found = [(event.key, event.count, event.self_cpu_time_total) for event in profiler.key_averages()]
        busy, gaps = 0.0, list[list]()
    else:
        events = sorted((event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA),
                        key=lambda event: event.time_range.start)
        counts, spent = Counter[str](), Counter[str]()
        for event in events:
            counts[event.name] += 1
            spent[event.name] += event.time_range.elapsed_us()
        found = [(name, counts[name], spent[name]) for name in counts]
        busy, gaps = _busy_and_gaps(events)
    longest = sorted(found, key=lambda one: -one[2])[:LONGEST]
    return {"busy_seconds": busy / 1e6 / num_epochs, "num_starts": sum(one[1] for one in found) / num_epochs,
            "kernels": [[name[:LONGEST_NAME], count / num_epochs, microseconds / 1e6 / num_epochs]
                        for name, count, microseconds in longest],
            "gaps": gaps}


def _busy_and_gaps(events: list) -> tuple[float, list[list]]:
    busy, gaps, end, last = 0.0, [], None, ""
    for event in events:
        start, stop = event.time_range.start, event.time_range.end
        if end is not None and start > end:
            gaps.append([(start - end) / 1e6, last[:LONGEST_NAME], event.name[:LONGEST_NAME]])
        begins = start if end is None else max(start, end)
        busy += max(0.0, stop - begins)
        if end is None or stop > end:
            end, last = stop, event.name
    return busy, sorted(gaps, key=lambda gap: -gap[0])[:LONGEST_GAPS]
