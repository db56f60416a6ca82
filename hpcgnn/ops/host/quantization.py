"""Host side of `hpcgnn.ops.quantization`, over the compiled kernels. Contracts are already checked."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn._ext import quantization as kernels
from hpcgnn.errors import KernelError
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.host.storage import STORAGE_NUMBER, as_bytes


def quantize_rows(rows: torch.Tensor, row_index: np.ndarray, node_id: np.ndarray, layout, key: CounterKey,
                  message: np.ndarray, is_nearest: bool) -> int:
    """Return -1, or the position of the first row that can't be quantized."""
    found = kernels.quantize_rows(as_bytes(rows), STORAGE_NUMBER[rows.dtype], layout.dim, row_index, node_id,
                                 layout.bit_width, layout.payload_offset, layout.parameter_offset, key.seed, key.epoch,
                                 key.stream, is_nearest, layout.is_rotated, _rotation_stream(layout, key), message)
    _refuse_outside(found, row_index, layout, len(rows), len(message))
    return found


def dequantize_rows(message: np.ndarray, row_index: np.ndarray, node_id: np.ndarray, layout, rows: torch.Tensor,
                    accumulate: bool, key: CounterKey | None = None) -> None:
    """Assign or add the message's rows to rows[row_index]; rotated rows need the key."""
    seed, epoch = (key.seed, key.epoch) if layout.is_rotated else (0, 0)
    found = kernels.dequantize_rows(message, row_index, node_id, layout.bit_width, layout.payload_offset,
                                    layout.parameter_offset, seed, epoch, layout.is_rotated,
                                    _rotation_stream(layout, key), accumulate, STORAGE_NUMBER[rows.dtype], layout.dim,
                                    as_bytes(rows))
    _refuse_outside(found, row_index, layout, len(rows), len(message))


def _rotation_stream(layout, key: CounterKey | None) -> int:
    return key.rotation().stream if layout.is_rotated else 0


def _refuse_outside(found: int, row_index: np.ndarray, layout, num_rows: int, num_bytes: int) -> None:
    if found < -1:
        i = -2 - found
        raise KernelError(f"row {i} of a message has {layout.dim} columns at {layout.bit_width[i]} bits from byte "
                          f"{layout.payload_offset[i]} of {num_bytes} on, and is row {row_index[i]} of {num_rows}; "
                          "expected a row within the message and the table")
