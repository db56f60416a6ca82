"""`Place` is where a benchmark runs: it times work, measures the limits, and holds rows.

`HostPlace` is in `hpcgnn.bench.host`, `DevicePlace` in `hpcgnn.bench.device`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from hpcgnn.bench.graphs import Topology, drawn_arcs, read_topology
from hpcgnn.bench.timing import Begin, Effort, Measurement, say_nothing

FEWEST_REPETITIONS = 3
LONGEST_REASON = 120        # characters of a refusal
PRECISION = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Work = Callable[[], object]
# A number is the known seconds of a contestant; None: there is no such contestant here.
Contestants = dict[str, Work | float | None]


@dataclass(frozen=True)
class Place(ABC):
    """Times contestants in one place."""

    effort: Effort
    name: str                                                               # torch's name of the device
    stream_bytes: int                                                       # length of a stream that measures a ceiling
    num_rows: int  # rows of a message and of pointwise work, larger than every cache
    # called with the name of each piece of work before it is timed
    begin: Begin = field(default=say_nothing, compare=False, repr=False)

    wide_float: ClassVar[torch.dtype]
    is_device: ClassVar[bool]                                               # kernels of hpcgnn.ops.cuda run here

    @abstractmethod
    def seconds_of(self, work: Work, is_hot: bool = False) -> float:
        """Seconds of one call; with `is_hot` the caches hold what the work touches."""

    @abstractmethod
    def first_seconds_of(self, work: Work) -> float:
        """Seconds of the first call if they tell how long a later call takes, else 0."""

    @abstractmethod
    def moving(self, num_read: int, num_written: int) -> Work:
        """Work that reads and writes these numbers of bytes, in order."""

    @abstractmethod
    def gathering(self, rows: torch.Tensor, indices: np.ndarray) -> Work | None:
        """Work that reads rows (n, dim) in the order of `indices` (num_entries,) int32 and writes next to nothing.

        This is SpMM without its output; None if the place can't do it.
        """

    @abstractmethod
    def multiplying_bits(self, num_products: int) -> Work | float | None:
        """Work that does this many products of bits on registers, or its seconds."""

    @abstractmethod
    def ceilings(self) -> Iterator[Measurement]:
        """Measure the limits of kernels of rows."""

    @abstractmethod
    def bit_ceilings(self) -> list[Measurement]:
        """Measure those limits of products of bits that are not measured with each product."""

    @abstractmethod
    def random_rows(self, num_rows: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        """(num_rows, dim) standard normal values."""

    @abstractmethod
    def empty_rows(self, num_rows: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        pass

    @abstractmethod
    def empty_bytes(self, num_bytes: int) -> np.ndarray | torch.Tensor:
        """Memory for a message, as the kernels of this place take it."""

    @abstractmethod
    def draw(self, num_edges: int) -> Topology:
        """Draw a graph of about `num_edges` edges."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Details of the place for bench.json; the machine is described apart."""

    def interleave(self, contestants: Mapping[str, Work], is_hot: bool = False) -> dict[str, list[float]]:
        """Time all contestants in turn, round after round, so that a busy moment of the machine hits all of them.

        The first call of each is not counted: it imports modules, compiles kernels, allocates memory and fills caches.
        If it took so long that the fewest repetitions would use up all seconds, one more call is timed; if it took more
        than all seconds, it is the only one and counts.
        """
        seconds: dict[str, list[float]] = {}
        for name, work in contestants.items():
            first = self.first_seconds_of(work)
            if first <= self.effort.seconds / FEWEST_REPETITIONS:
                seconds[name] = []
            else:
                seconds[name] = [first if first > self.effort.seconds else self.seconds_of(work, is_hot)]
        repeated = [name for name, spent in seconds.items() if not spent]
        for _ in range(self.effort.repeat):
            for name in repeated:
                spent = seconds[name]
                if len(spent) < FEWEST_REPETITIONS or sum(spent) <= self.effort.seconds:
                    spent.append(self.seconds_of(contestants[name], is_hot))
        return seconds

    def measure(self, group: str, case: str, amount: float, unit: str,
                contestants: Mapping[str, Work | float | None], remarks: list[str] | None = None,
                is_hot: bool = False) -> Measurement:
        self.begin(f"{group}: {case}")
        known = {name: [work] for name, work in contestants.items() if isinstance(work, float)}
        timed = self.interleave({name: work for name, work in contestants.items() if callable(work)}, is_hot)
        return Measurement(group, case, amount, unit, known | timed, remarks or [])


def refusal(work: Work) -> str | None:
    """Try the work; return the peer's error if it fails, else None."""
    try:
        work()
    except RuntimeError as reason:
        return str(reason).strip().partition("\n")[0][:LONGEST_REASON]
    return None


def admit(peers: dict[str, Work], case: str) -> tuple[dict[str, Work], list[str]]:
    """The peers that can do the work, and a remark on each that can't."""
    refusals = {name: refusal(work) for name, work in peers.items()}
    return ({name: work for name, work in peers.items() if refusals[name] is None},
            [f"{name} refuses {case}: {reason}" for name, reason in refusals.items() if reason is not None])


def open_topology(source: str, place: Place) -> Topology:
    """Read an archive, or draw the graph of `drawn:EDGES`; errors as in `drawn_arcs` and `read_topology`."""
    num_edges = drawn_arcs(source)
    return read_topology(Path(source)) if num_edges is None else place.draw(num_edges)
