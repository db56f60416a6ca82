"""The machine's limits, measured in the same run and on the same threads and memory as what is compared with them.

They bound bandwidth and arithmetic; nothing here is of use to a training.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from hpcgnn._ext import ceilings as kernels
from hpcgnn._ext import peaks
from hpcgnn.bench.memory import as_stream, zeros
from hpcgnn.bench.timing import OURS, Effort, Measurement, interleave
from hpcgnn.ops.host.simd import allows_tiles, multiplies_bfloat16
from hpcgnn.ops.host.storage import STORAGE_NUMBER, as_bytes

NUM_PRODUCTS = 4e9       # some tens of milliseconds a core
PREFETCH_DISTANCES = (4, 8, 16, 32, 64)
PRECISION = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def measure_ceilings(num_bytes: int, effort: Effort) -> list[Measurement]:
    """Streams over `num_bytes`, and multiplications on registers."""
    return [*stream_ceilings(num_bytes, effort),
            *(arithmetic_ceiling(precision, NUM_PRODUCTS, effort) for precision in ("fp32", "bf16"))]


def stream_ceilings(num_bytes: int, effort: Effort) -> list[Measurement]:
    """Read, write and copy; a copy counts both its sides."""
    source, target = zeros((num_bytes,), "uint8"), zeros((num_bytes,), "uint8")
    seconds = interleave({"read": partial(kernels.stream_read, source),
                          "write": partial(kernels.stream_write, target, 1),
                          "copy": partial(kernels.stream_copy, target, source)}, effort)
    moved = {"read": num_bytes, "write": num_bytes, "copy": 2 * num_bytes}
    return [Measurement("ceiling", f"stream {name}", moved[name] / 1e9, "GB/s", {OURS: spent})
            for name, spent in seconds.items()]


def arithmetic_ceiling(precision: str, num_products: float, effort: Effort) -> Measurement:
    """`product_ceiling` as a measurement of its own."""
    seconds = interleave({OURS: product_ceiling(precision, num_products)}, effort)
    return Measurement("ceiling", f"multiply-add {precision}", 2 * num_products / 1e9, "GFLOP/s", seconds)


def product_ceiling(precision: str, num_products: float) -> Callable[[], int]:
    """Work that does so many multiplications and additions on registers, with the best instructions that there are for
    rows of this precision and sums in float32: none of float16 has any.
    """
    if precision == "bf16" and multiplies_bfloat16():
        return partial(peaks.bfloat16_products, int(num_products), allows_tiles())
    return partial(peaks.float_products, int(num_products))


def read_stream(rows: torch.Tensor) -> Callable[[], None]:
    """Work that reads the rows once, in order."""
    return partial(kernels.stream_read, as_stream(rows))


def write_stream(rows: torch.Tensor) -> Callable[[], None]:
    """Work that writes the rows once, in order."""
    return partial(kernels.stream_write, as_stream(rows), 1)


def copy_stream(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
    """Work that reads one and writes the other."""
    return partial(kernels.stream_copy, as_stream(target), as_stream(source))


def gather_ceiling(rows: torch.Tensor, indices: np.ndarray) -> Callable[[], None]:
    """Work that reads the rows `indices` in their order and keeps their sum in registers: SpMM without its output.

    Rows are prefetched at the distance that is the fastest here.
    """
    table, storage, dim = as_bytes(rows), STORAGE_NUMBER[rows.dtype], rows.shape[1]
    works = {ahead: partial(kernels.gather_sum, table, dim, storage, indices, ahead) for ahead in PREFETCH_DISTANCES}
    seconds = interleave(works, Effort(repeat=3))
    return works[min(seconds, key=lambda ahead: min(seconds[ahead]))]


def bit_product_ceiling(num_products: int) -> Callable[[], int]:
    """Work that does so many products of bits, on registers, with the instructions of the product kernels."""
    return partial(peaks.bit_products, num_products)


def byte_product_ceiling(num_products: int) -> Callable[[], int]:
    """Work that does so many products of small integers, on registers, with the instructions of the combination."""
    return partial(peaks.byte_products, num_products)
