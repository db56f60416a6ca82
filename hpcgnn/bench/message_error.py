"""What rows lose in messages: the squared error of codes on rows of several kinds, beside what a row takes on the wire.

Bytes are the same in every place; nothing here is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from hpcgnn.ops.counter import FORWARD, CounterKey
from hpcgnn.ops.quantization import (
    NO_BAD_ROW,
    Buffer,
    MessageLayout,
    dequantize_rows,
    quantize_rows,
    start_quantizing,
)

NUM_ROWS = 1000
KEY = CounterKey(0, 0, FORWARD, 0)
DEGREES_OF_FREEDOM = 3      # of Student's t, whose fourth moment is infinite


def rows_by_kind(width: int) -> dict[str, np.ndarray]:
    """Return (NUM_ROWS, width) float32 rows by name: normal, heavy-tailed, and normal ones after a ReLU."""
    rng, shape = np.random.default_rng(0), (NUM_ROWS, width)
    normal = rng.normal(size=shape)
    rows = {"normal": normal, "heavy-tailed": rng.standard_t(DEGREES_OF_FREEDOM, size=shape),
            "rectified": np.maximum(normal, 0)}
    return {kind: values.astype(np.float32) for kind, values in rows.items()}


def host_bytes(num_bytes: int) -> np.ndarray:
    """Return memory for a message of rows on the host."""
    return np.empty(num_bytes, np.uint8)


def filling(rows: torch.Tensor, index: np.ndarray, node_id: np.ndarray, layout: MessageLayout, key: CounterKey,
            message: Buffer) -> Callable[[], None]:
    """Return a function that fills the message; a device is not waited for."""
    if isinstance(message, np.ndarray):
        return partial(quantize_rows, rows, index, node_id, layout, key, message)
    first_bad = torch.full((1,), NO_BAD_ROW, dtype=torch.int32, device=rows.device)
    return partial(start_quantizing, rows, index, node_id, layout, key, message, first_bad)


def squared_errors(width: int, bits: int, code: str, device: str = "cpu",
                   empty_bytes: Callable[[int], Buffer] = host_bytes) -> dict[str, float]:
    """Return the squared error of rows rounded by draws over their squared norm, by the name of `rows_by_kind`.

    Parameters
    ----------
    width : columns of a row
    bits, code : of the message
    device : where rows lie
    empty_bytes : function      returns memory for a message beside them
    """
    sums = {kind: squared_sums(torch.from_numpy(values).to(device), bits, code, empty_bytes)
            for kind, values in rows_by_kind(width).items()}
    return {kind: error / norm for kind, (error, norm) in sums.items()}


def squared_sums(rows: torch.Tensor, bits: int, code: str,
                 empty_bytes: Callable[[int], Buffer] = host_bytes) -> tuple[float, float]:
    """Return the squared error of (n, width) float32 rows rounded by draws, and their squared norm.

    Parameters
    ----------
    bits, code : of the message
    empty_bytes : function      returns memory for a message beside the rows
    """
    num_rows, width = rows.shape
    layout = MessageLayout.build(np.full(num_rows, bits, np.uint8), width, code)
    index, message = np.arange(num_rows, dtype=np.int32), empty_bytes(layout.num_bytes)
    received = torch.empty_like(rows)
    filling(rows, index, np.arange(num_rows), layout, KEY, message)()
    dequantize_rows(message, index, np.arange(num_rows), layout, received, key=KEY)
    return float((received - rows).double().square().sum()), float(rows.double().square().sum())


def error_line(num_bytes: int, errors: dict[str, float], case: str) -> str:
    """Return bytes of a row and squared errors as a remark on `case`."""
    shares = ", ".join(f"{kind} {error:.2g}" for kind, error in errors.items())
    return f"{case}: {num_bytes} bytes a row; squared error over squared norm of rows: {shares}"
