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
from hpcgnn.bench.memory import as_stream, empty_rows, random_rows, zeros
from hpcgnn.bench.timing import OURS, Effort, Measurement, interleave
from hpcgnn.ops.host.storage import STORAGE_NUMBER, as_bytes

PREFETCH_DISTANCES = (4, 8, 16, 32, 64)
PRECISION = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def measure_ceilings(num_bytes: int, num_rows: int, width: int, effort: Effort) -> list[Measurement]:
    """Streams over `num_bytes`, and products of (num_rows, width) by (width, width) rows."""
    return [*stream_ceilings(num_bytes, effort),
            *(gemm_ceiling(num_rows, width, precision, effort) for precision in ("fp32", "bf16"))]


def stream_ceilings(num_bytes: int, effort: Effort) -> list[Measurement]:
    """Read, write and copy; a copy counts both its sides."""
    source, target = zeros((num_bytes,), "uint8"), zeros((num_bytes,), "uint8")
    seconds = interleave({"read": partial(kernels.stream_read, source),
                          "write": partial(kernels.stream_write, target, 1),
                          "copy": partial(kernels.stream_copy, target, source)}, effort)
    moved = {"read": num_bytes, "write": num_bytes, "copy": 2 * num_bytes}
    return [Measurement("ceiling", f"stream {name}", moved[name] / 1e9, "GB/s", {OURS: spent})
            for name, spent in seconds.items()]


def gemm_ceiling(num_rows: int, width: int, precision: str, effort: Effort) -> Measurement:
    """The faster of torch's and NumPy's product into memory that is kept; NumPy has none of 16 bits."""
    dtype = PRECISION[precision]
    rows, weight, out = random_rows(num_rows, width, dtype), random_rows(width, width, dtype), \
        empty_rows(num_rows, width, dtype)
    contestants: dict[str, Callable] = {"torch": partial(torch.mm, rows, weight, out=out)}
    if precision == "fp32":
        contestants["numpy"] = partial(np.matmul, rows.numpy(), weight.numpy(), out=out.numpy())
    measured = Measurement("ceiling", "", 2 * num_rows * width**2 / 1e9, "GFLOP/s", interleave(contestants, effort))
    best = min(contestants, key=measured.median)
    measured.case = f"GEMM {precision} ({best})"
    measured.seconds[OURS] = measured.seconds.pop(best)
    return measured


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
