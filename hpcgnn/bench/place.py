"""`Place` is where a benchmark runs: it times work, measures the limits on the same threads and memory, and holds rows.

It is the host here; `DevicePlace` of `hpcgnn.bench.device` is a GPU. The host's limits are bandwidth and products on
registers. Its arrays lie on huge pages where the system gives them, and are touched once, so that no page fault is
timed.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from hpcgnn._ext import ceilings as kernels
from hpcgnn._ext import peaks
from hpcgnn.bench.graphs import Topology, draw_communities, drawn_arcs, read_topology
from hpcgnn.bench.timing import OURS, Begin, Effort, Measurement, say_nothing, wall_seconds
from hpcgnn.ops.dispatch import STORAGE_NUMBER, as_bytes
from hpcgnn.ops.simd import allows_tiles, multiplies_bfloat16

FEWEST_REPETITIONS = 3
LONGEST_REASON = 120        # characters of a refusal
PRECISION = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)    # Linux only
NUM_PRODUCTS = 4e9       # some tens of milliseconds per core
PREFETCH_DISTANCES = (4, 8, 16, 32, 64)

Work = Callable[[], object]
# A number is the known seconds of a contestant; None: there is no such contestant here.
Contestants = dict[str, Work | float | None]


def zeros(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, max(num_bytes, 1))
    if MADV_HUGEPAGE is not None:
        pages.madvise(MADV_HUGEPAGE)
    array = np.frombuffer(pages, np.uint8)[:num_bytes]
    array.fill(0)
    return array.view(dtype).reshape(shape)


def copy_stream(target: np.ndarray, source: np.ndarray) -> Work:
    """Work that reads one uint8 array and writes the other past the caches."""
    return partial(kernels.stream_copy, target, source)


@dataclass(frozen=True)
class Place:
    effort: Effort
    name: str = "cpu"                   # torch's name of the device
    stream_bytes: int = 256 << 20       # length of a stream that measures a ceiling
    num_rows: int = 85_000              # rows of a message and of pointwise work, larger than every cache
    # called with the name of each piece of work before it is timed
    begin: Begin = field(default=say_nothing, compare=False, repr=False)

    wide_float: ClassVar[torch.dtype] = torch.float32
    is_device: ClassVar[bool] = False      # kernels of hpcgnn.ops.cuda run here

    def seconds_of(self, work: Work, is_hot: bool = False) -> float:
        """Seconds of one call; with `is_hot` the caches hold what the work touches."""
        if is_hot:
            work()
        return wall_seconds(work)

    def first_seconds_of(self, work: Work) -> float:
        """Seconds of the first call if they tell how long a later call takes, else 0."""
        return self.seconds_of(work)

    def moving(self, num_read: int, num_written: int) -> Work:
        """Work that reads and writes these numbers of bytes, in order."""
        # Copies what is both read and written, then reads or writes the rest.
        num_copied = min(num_read, num_written)
        works: list[Work] = []
        if num_copied:
            works.append(copy_stream(zeros((num_copied,), "uint8"), zeros((num_copied,), "uint8")))
        if num_read > num_copied:
            works.append(partial(kernels.stream_read, zeros((num_read - num_copied,), "uint8")))
        if num_written > num_copied:
            works.append(partial(kernels.stream_write, zeros((num_written - num_copied,), "uint8"), 1))
        return lambda: [work() for work in works]

    def gathering(self, rows: torch.Tensor, indices: np.ndarray) -> Work | None:
        """Work that reads rows (n, dim) in the order of `indices` (num_entries,) int32 and writes next to nothing.

        This is SpMM without its output; None if the place can't do it.
        """
        # Keeps the sum of the rows in registers, and prefetches at the distance that is fastest here.
        table, storage, dim = as_bytes(rows), STORAGE_NUMBER[rows.dtype], rows.shape[1]
        works = {str(ahead): partial(kernels.gather_sum, table, dim, storage, indices, ahead)
                 for ahead in PREFETCH_DISTANCES}
        seconds = replace(self, effort=Effort(repeat=3)).interleave(works)
        return works[min(seconds, key=lambda ahead: min(seconds[ahead]))]

    def multiplying(self, precision: str, num_products: float) -> Work:
        """Work of `num_products` multiply-adds on registers, with float32 sums.

        Uses the best instructions for this precision; float16 has none of its own.
        """
        if precision == "bf16" and multiplies_bfloat16():
            return partial(peaks.bfloat16_products, int(num_products), allows_tiles())
        return partial(peaks.float_products, int(num_products))

    def multiplying_bits(self, num_products: int) -> Work | float | None:
        """Work that does this many products of bits on registers, or its seconds."""
        return partial(peaks.bit_products, num_products)

    def multiplying_bytes(self, num_products: int) -> Work:
        return partial(peaks.byte_products, num_products)

    def ceilings(self) -> Iterator[Measurement]:
        """Streams (a copy counts both sides) and multiplications on registers."""
        length = self.stream_bytes
        streams = {"read": (length, 0), "write": (0, length), "copy": (length, length)}
        seconds = self.interleave({name: self.moving(*moved) for name, moved in streams.items()})
        for name, moved in streams.items():
            yield Measurement("ceiling", f"stream {name}", sum(moved) / 1e9, "GB/s", {OURS: seconds[name]})
        for precision in ("fp32", "bf16"):
            yield self.measure("ceiling", f"multiply-add {precision}", 2 * NUM_PRODUCTS / 1e9, "GFLOP/s",
                               {OURS: self.multiplying(precision, NUM_PRODUCTS)})

    def bit_ceilings(self) -> list[Measurement]:
        """Measure those limits of products of bits that are not measured with each product."""
        # Each product of bits is measured with its own ceiling.
        return []

    def random_rows(self, num_rows: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        """(num_rows, dim) standard normal values."""
        rows = self.empty_rows(num_rows, dim, dtype)
        rows.copy_(torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed)))
        return rows

    def empty_rows(self, num_rows: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        # Zeros, so that all pages are present.
        return torch.from_numpy(zeros((num_rows, dim * dtype.itemsize), "uint8")).view(dtype)

    def empty_bytes(self, num_bytes: int) -> np.ndarray | torch.Tensor:
        """Memory for a message, as the kernels of this place take it."""
        return zeros((num_bytes,), "uint8")

    def draw(self, num_edges: int) -> Topology:
        return draw_communities(num_edges)

    def describe(self) -> dict[str, Any]:
        return {}

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
