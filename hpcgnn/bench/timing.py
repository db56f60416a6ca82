"""Measurement holds the seconds of one piece of work, done by several contestants in turn, and what follows from them.

The loop that times contestants is `hpcgnn.bench.place.Place.interleave`. Nothing here imports NumPy or torch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

OURS, CEILING = "hpcgnn", "ceiling"

Begin = Callable[[str], None]        # is told what is measured from now on
Part = tuple[str, Callable[[], "Iterable[Measurement]"]]    # its name, and the function that measures it


@dataclass(frozen=True)
class Effort:
    """Says how often a contestant is timed: `repeat` times, or from the third on until it has used up `seconds`; once
    where three times would use up more.
    """

    repeat: int = 7
    seconds: float = 5.0


@dataclass
class Measurement:
    """Holds the seconds of one piece of work.

    Attributes
    ----------
    group, case : str                     kernel, and what it was run on
    amount : float                        work in 1e9 units: GB moved or GFLOP; in 1e12, TOP
    unit : {"GB/s", "GFLOP/s", "GOP/s", "TOP/s", "s"}    of amount over seconds; "s" shows the seconds themselves
    seconds : dict name -> list of float  every repetition of every contestant: hpcgnn, ceiling and peers
    remarks : list of str                 what a reader must know, e.g. a peer that can't do this
    details : dict                        what else bench.json holds of it
    """

    group: str
    case: str
    amount: float
    unit: str
    seconds: dict[str, list[float]]
    remarks: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def median(self, name: str = OURS) -> float:
        """Return the median seconds of a contestant."""
        return statistics.median(self.seconds[name])

    @property
    def rate(self) -> float | None:
        """Return our rate in `unit`, or None where only seconds have a meaning."""
        return None if self.unit == "s" else self.amount / self.median()

    @property
    def ceiling_share(self) -> float | None:
        """Return the seconds of the ceiling over ours: 1 is the machine's limit."""
        return self.median(CEILING) / self.median() if CEILING in self.seconds else None

    @property
    def peers(self) -> list[str]:
        """Return the names of all contestants but us and the ceiling."""
        return [name for name in self.seconds if name not in (OURS, CEILING)]

    @property
    def peer_ratio(self) -> dict[str, float]:
        """Return each peer's seconds over ours, that is how many times faster we are."""
        return {name: self.median(name) / self.median() for name in self.peers}

    def as_record(self) -> dict[str, Any]:
        """Return everything as bench.json holds it."""
        return {"group": self.group, "case": self.case, "unit": self.unit, "amount": self.amount,
                "median_seconds": {name: self.median(name) for name in self.seconds}, "rate": self.rate,
                "ceiling_share": self.ceiling_share, "peer_ratio": self.peer_ratio, "remarks": self.remarks,
                "seconds": self.seconds, **self.details}


def say_nothing(step: str) -> None:
    """Take note of a step where nobody watches."""


def wall_seconds(work: Callable[[], Any]) -> float:
    """Return the seconds of one call by this process's clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclass
class PartedBenchmark:
    """Measures parts, each of which may fail without the others.

    Attributes
    ----------
    failures : list of str, filled by `measure`
    """

    failures: list[str] = field(default_factory=list, init=False)

    def parts(self) -> Iterator[Part]:
        """Yield each part's name and the function that measures it."""
        raise NotImplementedError

    def measure(self) -> Iterator[Measurement]:
        """Measure everything, in the order of the table. A part that fails is noted, and the next one begins."""
        for name, part in self.parts():
            yield from self._attempt(name, part)

    def _attempt(self, name: str, part: Callable[[], Iterable[Measurement]]) -> Iterator[Measurement]:
        try:
            yield from part()
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
