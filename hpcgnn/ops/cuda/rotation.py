"""Rotated codes on a device: launches of kernels/rotation.cu, and the lanes and memory that hold a row.

Shared memory holds rows of up to 12,256 columns; wider rows take turns in a scratch in global memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.cuda.module import STATIC_SHARED_BYTES, kernel
from hpcgnn.ops.cuda.segments import SUFFIX, WARP
from hpcgnn.ops.cuda.step_numbers import fixed_draw
from hpcgnn.ops.resident import on_device

BLOCK_THREADS = 256
BLOCK_COLUMNS = 1024          # most columns of a pass; rotation.cuh has a case for each power of two up to it
NARROW_LANES = 16             # lanes that hold a row in narrower passes: a sum of columns needs no more
BANKS = 32                    # banks of shared memory
MOST_SCRATCH_ROWS = 1024      # rows in global memory at a time, if a row does not fit shared memory
FLOAT_BYTES = 4


@dataclass(frozen=True)
class RotationShape:
    """How a device holds rotated rows of one number of columns.

    block : int              columns of a pass, a power of two
    scale : float            scale of a pass, 1 / sqrt(block) in float32
    lanes, stride : int      lanes of a warp that hold a row; floats between two adjacent rows
    threads, shared_bytes : int      per block of threads; shared_bytes is 0 if rows lie in global memory
    """

    block: int
    scale: float
    lanes: int
    stride: int
    threads: int
    shared_bytes: int

    @classmethod
    def of_rows(cls, dim: int) -> RotationShape:
        """Shape for rows of at least one column; blocks are as large as shared memory allows."""
        block = min(BLOCK_COLUMNS, 1 << (dim.bit_length() - 1))
        lanes = WARP if block == BLOCK_COLUMNS else NARROW_LANES
        # Two rows of a warp begin in different halves of the banks.
        stride = -(-dim // BANKS) * BANKS + BANKS // 2
        threads = BLOCK_THREADS
        while threads > WARP and cls._bytes(threads, lanes, stride) > STATIC_SHARED_BYTES:
            threads //= 2
        shared_bytes = cls._bytes(threads, lanes, stride)
        if shared_bytes > STATIC_SHARED_BYTES:
            threads, shared_bytes = BLOCK_THREADS, 0
        return cls(block, float(np.float32(1 / np.sqrt(block))), lanes, stride, threads, shared_bytes)

    @staticmethod
    def _bytes(threads: int, lanes: int, stride: int) -> int:
        return threads // lanes * stride * FLOAT_BYTES

    def num_blocks(self, num_rows: int) -> int:
        """Blocks that hold `num_rows` rows; all rows at a time if they lie in shared memory."""
        rows = num_rows if self.shared_bytes else min(num_rows, MOST_SCRATCH_ROWS)
        return -(-rows * self.lanes // self.threads)

    def scratch(self, num_rows: int, device: torch.device) -> torch.Tensor | None:
        if self.shared_bytes:
            return None
        num_floats = self.num_blocks(num_rows) * (self.threads // self.lanes) * self.stride
        return torch.empty(num_floats, dtype=torch.float32, device=device)


def start_quantizing(rows: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout, key: CounterKey,
                     message: torch.Tensor, is_nearest: bool, first_bad: torch.Tensor) -> None:
    shape = RotationShape.of_rows(layout.dim)
    _start("quantize_rotated", rows, shape, layout)(
        rows, *_message_arguments(row_index, node_id, layout, rows), *_shape_arguments(shape, layout, rows),
        *fixed_draw(key), key.rotation().stream, is_nearest, message, first_bad)


def dequantize_rows(message: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout,
                    rotation_key: CounterKey, rows: torch.Tensor, accumulate: bool) -> None:
    shape = RotationShape.of_rows(layout.dim)
    _start("dequantize_rotated", rows, shape, layout)(
        message, *_message_arguments(row_index, node_id, layout, rows), *_shape_arguments(shape, layout, rows),
        *fixed_draw(rotation_key), accumulate, rows)


def _start(name: str, rows: torch.Tensor, shape: RotationShape, layout):
    launched = kernel("rotation", f"{name}_{SUFFIX[rows.dtype]}", is_exact=True)
    return lambda *arguments: launched((shape.num_blocks(layout.num_rows),), (shape.threads,), *arguments,
                                       shared_bytes=shape.shared_bytes)


def _message_arguments(row_index: np.ndarray, node_id: np.ndarray, layout, rows: torch.Tensor) -> tuple:
    arrays = (row_index, node_id, layout.bit_width, layout.payload_offset, layout.parameter_offset)
    return (*(on_device(array, rows) for array in arrays), layout.num_rows)


def _shape_arguments(shape: RotationShape, layout, rows: torch.Tensor) -> tuple:
    return (layout.dim, shape.block, shape.scale, shape.lanes, shape.stride,
            shape.scratch(layout.num_rows, rows.device))
