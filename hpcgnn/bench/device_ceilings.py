"""The GPU's limits, measured in the same run as what is compared with them: copying, gathering rows, 1-bit products.

Launches kernels/ceilings.cu, which is of use to nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from hpcgnn.bench.device_timing import Device
from hpcgnn.bench.timing import OURS, Measurement
from hpcgnn.ops.cuda.bit_gemm import AND_CAPABILITY
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.resident import on_device
from hpcgnn.ops.cuda.segments import sub_warp

BLOCK_THREADS, WARP = 256, 32
VECTOR_BYTES = 16
ENTRIES_A_BLOCK = 1024                              # as many as a block of the aggregation has
TILES_A_ROUND = 8                                   # of a warp, SETS of ceilings.cu
OPERATIONS_A_TILE = {"mma8": 2 * 8 * 8 * 128, "mma16": 2 * 16 * 8 * 256}
BLOCKS_A_PROCESSOR = 8
GATHERED_ROW_BYTES = 256


def measure_ceilings(device: Device, num_bytes: int, num_rounds: int) -> list[Measurement]:
    """A copy of `num_bytes`, and as many bytes of gathered rows; then bit_ceilings."""
    rows = torch.empty(num_bytes // GATHERED_ROW_BYTES, GATHERED_ROW_BYTES // 4, device=device.place)
    indices = np.random.default_rng(0).integers(0, len(rows), len(rows), dtype=np.int32)
    return [device.measure("ceiling", "copy", 2 * num_bytes / 1e9, "GB/s", {OURS: copy_of(device, 2 * num_bytes)}),
            device.measure("ceiling", f"gather of rows of {GATHERED_ROW_BYTES} bytes", rows.nbytes / 1e9, "GB/s",
                           {OURS: gather_of(rows.zero_(), indices)}),
            *bit_ceilings(device, num_rounds)]


def bit_ceilings(device: Device, num_rounds: int) -> list[Measurement]:
    """Measure both shapes of 1-bit products with operands in registers; none where tensor cores have no AND of bits."""
    if device.chip.capability < AND_CAPABILITY:
        return []
    num_blocks = BLOCKS_A_PROCESSOR * device.chip.num_processors
    num_tiles = num_blocks * BLOCK_THREADS // WARP * TILES_A_ROUND * num_rounds
    return [device.measure("ceiling", f"1-bit {form} in registers", num_tiles * operations / 1e12, "TFLOP/s",
                           {OURS: partial(multiply_in_registers, device, form, num_blocks, num_rounds)})
            for form, operations in OPERATIONS_A_TILE.items()]


def multiply_in_registers(device: Device, form: str, num_blocks: int, num_rounds: int) -> torch.Tensor:
    """(num_blocks * 256,) int32, what the kernel leaves."""
    out = torch.empty(num_blocks * BLOCK_THREADS, dtype=torch.int32, device=device.place)
    kernel("ceilings", f"multiply_bits_{form}")((num_blocks,), (BLOCK_THREADS,), num_rounds, out)
    return out


def copy_of(device: Device, num_bytes_moved: int) -> Callable[[], torch.Tensor]:
    """Work that reads half of so many bytes and writes the other half."""
    source, target = (torch.zeros(num_bytes_moved // 2, dtype=torch.uint8, device=device.place) for _ in range(2))
    return partial(target.copy_, source)


def can_gather(rows: torch.Tensor) -> bool:
    """Whether rows are whole vectors, as the kernel reads them."""
    return rows.shape[1] * rows.itemsize % VECTOR_BYTES == 0


def gather_of(rows: torch.Tensor, indices: np.ndarray) -> Callable[[], torch.Tensor]:
    """Work that reads the rows `indices` in their order and keeps them in registers: SpMM without its output.

    Parameters
    ----------
    rows : (n, dim), contiguous, for which `can_gather`
    indices : (num_entries,) int32

    Returns
    -------
    work : () -> (num_blocks * 256,) int32, the XOR of the words that each thread has read
    """
    row_vectors = rows.shape[1] * rows.itemsize // VECTOR_BYTES
    num_blocks = -(-len(indices) // ENTRIES_A_BLOCK)
    out = torch.empty(num_blocks * BLOCK_THREADS, dtype=torch.int32, device=rows.device)
    arguments = (rows.view(torch.int32), on_device(indices, rows), len(indices), ENTRIES_A_BLOCK, row_vectors,
                 sub_warp(row_vectors), out)

    def gather() -> torch.Tensor:
        kernel("ceilings", "gather_rows")((num_blocks,), (BLOCK_THREADS,), *arguments)
        return out

    return gather
