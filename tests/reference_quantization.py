"""NumPy oracle of messages between rows of any storage, over the float32 oracle of `reference`.

Nothing of hpcgnn is called.
"""

from __future__ import annotations

import numpy as np
import torch
from reference import bf16_value, encode_message, round_trip


def widen(rows: torch.Tensor) -> np.ndarray:
    """Rows of any storage as (n, dim) float32, exactly."""
    if rows.dtype == torch.bfloat16:
        return bf16_value(rows.view(torch.int16).numpy().view(np.uint16))
    return rows.numpy().astype(np.float32)


def narrow(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """float32 values to a storage, to the nearest, ties to even; NaN stays NaN."""
    if dtype == torch.float32:
        return torch.from_numpy(values.copy())
    if dtype == torch.float16:
        with np.errstate(over="ignore"):
            return torch.from_numpy(values.astype(np.float16))
    bits = values.view(np.uint32)
    even = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    half = np.where(np.isnan(values), bits >> np.uint32(16) | np.uint32(0x40), even).astype(np.uint16)
    return torch.from_numpy(half.view(np.int16)).view(torch.bfloat16)


def encode_stored(rows: torch.Tensor, bits: int, draws: np.ndarray) -> bytes:
    """Bytes of a message of rows of one width: at 16 bits a 16-bit row is its own elements."""
    if bits == 16 and rows.dtype != torch.float32:
        return rows.view(torch.int16).numpy().astype("<i2").tobytes()
    return encode_message(widen(rows), np.full(len(rows), bits), draws)


def receive_stored(rows: torch.Tensor, bits: int, draws: np.ndarray,
                   added_to: torch.Tensor | None = None) -> torch.Tensor:
    """What the receiver holds, in the storage of `rows`; on top of `added_to` where given."""
    values = widen(rows)
    if bits != 16 or rows.dtype == torch.float32:
        values = round_trip(values, bits, draws)
    if added_to is not None:
        return narrow(widen(added_to) + values, rows.dtype)
    if bits == 16 and rows.dtype != torch.float32:
        return rows.clone()
    return narrow(values, rows.dtype)
