"""Messages on a device: launches of kernels/quantization.cu, or of rotation.cu for rotated rows.

A message is a uint8 tensor on the rows' device with the bytes that the host's kernels write.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.cuda import rotation
from hpcgnn.ops.cuda.module import kernel
from hpcgnn.ops.cuda.segments import SUFFIX, lanes_a_row
from hpcgnn.ops.cuda.step_numbers import fixed_draw
from hpcgnn.ops.quantization import NO_BAD_ROW
from hpcgnn.ops.resident import on_device

BLOCK_THREADS = 256
NEAREST_LANES = 16            # lanes that sum a row, as on the host


def num_blocks(num_rows: int, lanes: int) -> int:
    return -(-num_rows * lanes // BLOCK_THREADS)


def quantize_rows(rows: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout, key: CounterKey,
                  message: torch.Tensor, is_nearest: bool) -> int:
    # This waits for the device.
    first_bad = torch.full((1,), NO_BAD_ROW, dtype=torch.int32, device=rows.device)
    start_quantizing(rows, row_index, node_id, layout, key, message, is_nearest, first_bad)
    position = int(first_bad)
    return -1 if position == NO_BAD_ROW else position


def start_quantizing(rows: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout, key: CounterKey,
                     message: torch.Tensor, is_nearest: bool, first_bad: torch.Tensor) -> None:
    if layout.num_rows == 0 or layout.dim == 0:
        return
    if layout.is_rotated:
        rotation.start_quantizing(rows, row_index, node_id, layout, key, message, is_nearest, first_bad)
        return
    name, lanes = ("quantize_nearest", NEAREST_LANES) if is_nearest else ("quantize", lanes_a_row(layout.dim))
    kernel("quantization", f"{name}_{SUFFIX[rows.dtype]}", is_exact=True)(
        (num_blocks(layout.num_rows, lanes),), (BLOCK_THREADS,), rows, on_device(row_index, rows),
        on_device(node_id, rows), *_layout_arguments(layout, rows), layout.num_rows, layout.dim, lanes,
        *fixed_draw(key), message, first_bad)


def dequantize_rows(message: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout, rows: torch.Tensor,
                    accumulate: bool, key: CounterKey | None = None) -> None:
    if layout.num_rows == 0 or layout.dim == 0:
        return
    if layout.is_rotated:
        rotation.dequantize_rows(message, row_index, node_id, layout, key.rotation(), rows, accumulate)
        return
    lanes = lanes_a_row(layout.dim)
    kernel("quantization", f"dequantize_{SUFFIX[rows.dtype]}", is_exact=True)(
        (num_blocks(layout.num_rows, lanes),), (BLOCK_THREADS,), message, on_device(row_index, rows),
        *_layout_arguments(layout, rows), layout.num_rows, layout.dim, lanes, accumulate, rows)


def _layout_arguments(layout, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(on_device(array, rows) for array in (layout.bit_width, layout.payload_offset, layout.parameter_offset))
