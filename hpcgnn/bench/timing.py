"""`Measurement` holds the seconds of several contestants for one piece of work, and the rates and ratios.

The loop that times contestants is `hpcgnn.bench.place.Place.interleave`. Imports neither NumPy nor torch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

OURS, CEILING = "hpcgnn", "ceiling"

Begin = Callable[[str], None]        # called with the name of the next measurement
Part = tuple[str, Callable[[], "Iterable[Measurement]"]]    # name of a part, and the function that measures it


@dataclass(frozen=True)
class Effort:
    """How often a contestant is timed.

    `repeat` times, but from the third on only until `seconds` are used up; only once if three would use up more.
    """

    repeat: int = 7
    seconds: float = 5.0


@dataclass
class Measurement:
    # group, case: kernel, and what it was run on
    group: str
    case: str
    amount: float                                            # work in GB, GFLOP, GOP or TOP, by `unit`
    unit: str  # "GB/s", "GFLOP/s", "GOP/s" or "TOP/s"; "s" shows the seconds themselves
    # dict name -> list of float, every repetition of every contestant: hpcgnn, ceiling and peers
    seconds: dict[str, list[float]]
    remarks: list[str] = field(default_factory=list)         # for the reader, e.g. a peer that can't do this
    details: dict[str, Any] = field(default_factory=dict)    # further entries of bench.json

    def median(self, name: str = OURS) -> float:
        return statistics.median(self.seconds[name])

    @property
    def rate(self) -> float | None:
        """Our rate in `unit`; None if only seconds have a meaning."""
        return None if self.unit == "s" else self.amount / self.median()

    @property
    def ceiling_share(self) -> float | None:
        """Seconds of the ceiling over ours: 1 is the machine's limit."""
        return self.median(CEILING) / self.median() if CEILING in self.seconds else None

    @property
    def peers(self) -> list[str]:
        return [name for name in self.seconds if name not in (OURS, CEILING)]

    @property
    def peer_ratio(self) -> dict[str, float]:
        """Each peer's seconds over ours: how many times faster we are."""
        return {name: self.median(name) / self.median() for name in self.peers}

    def as_record(self) -> dict[str, Any]:
        return {"group": self.group, "case": self.case, "unit": self.unit, "amount": self.amount,
                "median_seconds": {name: self.median(name) for name in self.seconds}, "rate": self.rate,
                "ceiling_share": self.ceiling_share, "peer_ratio": self.peer_ratio, "remarks": self.remarks,
                "seconds": self.seconds, **self.details}


def say_nothing(step: str) -> None:
    pass


def wall_seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclass
class PartedBenchmark:
    """Measures parts; if one fails, notes it in `failures` and goes on with the next."""

    failures: list[str] = field(default_factory=list, init=False)

    def parts(self) -> Iterator[Part]:
        raise NotImplementedError

    def measure(self) -> Iterator[Measurement]:
        for name, part in self.parts():
            yield from self._attempt(name, part)

    def _attempt(self, name: str, part: Callable[[], Iterable[Measurement]]) -> Iterator[Measurement]:
        try:
            yield from part()
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
