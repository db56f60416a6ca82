"""PhaseClock times the epochs of one training, phase by phase, for every contestant of `hpcgnn bench epoch` alike.

A training has phases, such as 3 epochs without dropout, 2 to warm up, 10 that are timed, 10 more in tf32, and 2 under
torch's profiler. Whoever trains calls `start` before its first epoch and `tick` after each; the loss that `tick` takes
was read from the device, so that nothing of the epoch is still under way.
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
LONGEST, LONGEST_GAPS, LONGEST_NAME = 20, 5, 90      # of a profile: kernels, gaps, characters of a kernel's name


@dataclass(frozen=True)
class Phase:
    """Describes some epochs of a training.

    Attributes
    ----------
    name : str           fp32, tf32, ..: what the seconds are listed under; PROFILED runs under torch's profiler
    dropout : float
    """

    name: str
    epochs: int
    dropout: float


@dataclass
class PhaseClock:
    """Times epochs, and moves from one phase to the next between them.

    Attributes
    ----------
    phases : tuple of Phase
    device : str                      "cpu" or "cuda"
    set_dropout : callable(float)     sets the probability in the model
    seconds, losses : dict            of each phase's epochs, by its name
    profile : dict                    of the phase PROFILED, see `profile_record`; empty without it, and where torch's
                                      profiler fails only `fault`
    peak_bytes : int                  of the device's memory since the first epoch, before the profile; 0 on the host
    """

    phases: tuple[Phase, ...]
    device: str
    set_dropout: Callable[[float], None]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0
    _number: int = -1
    _left: int = 0
    _profiler: Any = None
    _started: float = 0.0

    @property
    def num_epochs(self) -> int:
        """Epochs of all phases."""
        return sum(phase.epochs for phase in self.phases)

    @property
    def is_done(self) -> bool:
        """Whether all phases have been trained."""
        return self._number == len(self.phases)

    def start(self) -> None:
        """Begin the first phase."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self._enter_next()
        self._restart()

    def tick(self, loss: float) -> None:
        """End an epoch whose loss has been read."""
        spent, phase = time.perf_counter() - self._started, self.phases[self._number]
        self.seconds.setdefault(phase.name, []).append(spent)
        self.losses.setdefault(phase.name, []).append(loss)
        self._left -= 1
        if not self._left:
            self._leave(phase)
            self._enter_next()
        self._restart()

    def stop(self) -> None:
        """Leave the phase under way, where a training ends early, and torch's setting as it was."""
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
        torch.set_float32_matmul_precision("high" if phase.name == TF32 else "highest")
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
        """Note what the profiler can't do here in the profile: a training that is timed goes on without one."""
        try:
            yield
        except Exception as reason:      # of CUPTI, Kineto and what they find
            self.profile = {"fault": f"{type(reason).__name__}: {reason}"}

    def _restart(self) -> None:
        self._started = time.perf_counter()


def profile_record(profiler: profile, num_epochs: int, device: str) -> dict[str, Any]:
    """What an epoch spends on the device, as bench.json holds it; on the host, in torch's operations.

    Returns
    -------
    dict with, per epoch, `busy_seconds` (in which the device does anything, 0 on the host), `num_starts` of kernels and
    copies, `kernels`: [name, starts, seconds] of the longest, and `gaps`: [seconds, what ends, what begins] of the
    longest waits between two of them
    """
    if device != "cuda":
        found = [(event.key, event.count, event.self_cpu_time_total) for event in profiler.key_averages()]
        busy, gaps = 0.0, []
    else:
        events = sorted((event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA),
                        key=lambda event: event.time_range.start)
        counts, spent = Counter(), Counter()
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
    """Microseconds in which any of some events, in the order of their starts, is under way, and the longest gaps."""
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
