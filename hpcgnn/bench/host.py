"""`HostPlace` times work by the wall clock, and measures limits in the same run on the same threads and memory.

The limits are bandwidth and products on registers. Arrays lie on huge pages where the system gives them, and are
touched once, so that no page fault is timed.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn._ext import ceilings as kernels
from hpcgnn._ext import peaks
from hpcgnn.bench.graphs import Topology, draw_communities
from hpcgnn.bench.place import Place, Work
from hpcgnn.bench.timing import OURS, Effort, Measurement, wall_seconds
from hpcgnn.ops.simd import allows_tiles, multiplies_bfloat16
from hpcgnn.ops.storage import STORAGE_NUMBER, as_bytes

MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)    # Linux only
NUM_PRODUCTS = 4e9       # some tens of milliseconds per core
PREFETCH_DISTANCES = (4, 8, 16, 32, 64)


def zeros(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Zeros in their own pages, all present."""
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
class HostPlace(Place):
    name: str = "cpu"
    stream_bytes: int = 256 << 20
    num_rows: int = 85_000

    wide_float = torch.float32
    is_device = False

    def seconds_of(self, work: Work, is_hot: bool = False) -> float:
        if is_hot:
            work()
        return wall_seconds(work)

    def first_seconds_of(self, work: Work) -> float:
        return self.seconds_of(work)

    def moving(self, num_read: int, num_written: int) -> Work:
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

    def gathering(self, rows: torch.Tensor, indices: np.ndarray) -> Work:
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

    def multiplying_bits(self, num_products: int) -> Work:
        return partial(peaks.bit_products, num_products)

    def multiplying_bytes(self, num_products: int) -> Work:
        """Work of `num_products` products of small integers on registers, as in the combination."""
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
        # Each product of bits is measured with its own ceiling.
        return []

    def random_rows(self, num_rows: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        rows = self.empty_rows(num_rows, dim, dtype)
        rows.copy_(torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed)))
        return rows

    def empty_rows(self, num_rows: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        # Zeros, so that all pages are present.
        return torch.from_numpy(zeros((num_rows, dim * dtype.itemsize), "uint8")).view(dtype)

    def empty_bytes(self, num_bytes: int) -> np.ndarray:
        return zeros((num_bytes,), "uint8")

    def draw(self, num_edges: int) -> Topology:
        return draw_communities(num_edges)

    def describe(self) -> dict[str, Any]:
        return {}
