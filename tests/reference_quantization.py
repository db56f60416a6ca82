"""NumPy oracle of messages between rows of any storage, over the float32 oracle of `reference`.

Nothing of hpcgnn is called.
"""

from __future__ import annotations

import numpy as np
import torch
from reference import bf16_down, bf16_up, bf16_value, dequantize, encode_message, pack, round_trip


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


def rows_of_every_kind(dim: int, seed: int = 0) -> np.ndarray:
    """Ordinary, constant, tiny-range, offset, denormal and huge rows, and one with an outlier: (12, dim)."""
    rng = np.random.default_rng(seed)
    scale = np.array([1, 0, 0, 1e-6, 0.5, 1e-40, 1e-45, 1e38, 1e-7, 0, 0.1, 1e-20])
    offset = np.array([0, 3.14159, -0.1, 20.3, 20, 0, 0, 0, -7, 2, -30, 0])
    rows = (offset[:, None] + scale[:, None] * rng.uniform(-1, 1, (12, dim))).astype(np.float32)
    rows[0, rng.integers(dim)] = -0.0
    rows[11, rng.integers(dim)] = 1e30
    return rows


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


def to_bf16(values: np.ndarray) -> np.ndarray:
    """bfloat16 bits nearest to float32 values, ties to even."""
    return narrow(np.asarray(values, np.float32), torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def sum_sixteen(values: np.ndarray) -> np.float32:
    """float32 sum of a row: column j goes to partial sum j % 16, then the sums are halved until one is left."""
    padded = np.zeros(-(-len(values) // 16) * 16, np.float32)
    padded[:len(values)] = values
    lanes = np.zeros(16, np.float32)
    for part in padded.reshape(-1, 16):
        lanes += part
    while len(lanes) > 1:
        lanes = lanes[:len(lanes) // 2] + lanes[len(lanes) // 2:]
    return lanes[0]


def line_of(row: np.ndarray, bits: int) -> tuple[float, float]:
    """Values of the first and the last code of a row of 1, 2 or 4 bits, before they are rounded to bfloat16.

    Sums are of float32 distances to the least value. One bit: the two centroids of the best of three splits. More:
    least squares on the codes that the row's range yields.
    """
    low, top = row.min() + np.float32(0), np.float32(2**bits - 1)
    unit = np.float32(2.0**-32 if row.max() - low > np.float32(1e28) else 1)
    distance = (row - low) * unit
    total, most = float(sum_sixteen(distance)), (row.max() - low) * unit
    mean = total / len(row)
    if bits == 1:
        first, last = centroids(distance, total, [mean, (mean + float(most)) / 2, mean / 2])
    else:
        with np.errstate(divide="ignore", over="ignore"):
            scale = top / most if most > 0 else np.float32(0)
        code = np.minimum(np.rint(distance / most * top if scale > np.float32(1e37) else distance * scale), top)
        codes, squares, products = (float(sum_sixteen(x)) for x in (code, code * code, code * distance))
        spread = len(row) * squares - codes * codes
        slope = (len(row) * products - codes * total) / spread if spread > 0 else 0.0
        first = (total - slope * codes) / len(row)
        last = first + slope * float(top)
    return float(low) + first / float(unit), float(low) + last / float(unit)


def centroids(distance: np.ndarray, total: float, splits: list[float]) -> tuple[float, float]:
    """Means below and above the split that leaves the least energy; the mean twice where no split has two sides."""
    best = (total * (total / len(distance)), total / len(distance), total / len(distance))
    for split in splits:
        is_above = distance > np.float32(split)
        above, num_above = float(sum_sixteen(np.where(is_above, distance, np.float32(0)))), int(is_above.sum())
        below, num_below = total - above, len(distance) - num_above
        if num_above and num_below:
            energy = above * above / num_above + below * below / num_below
            if energy > best[0]:
                best = energy, below / num_below, above / num_above
    return best[1:]


def quantize_nearest(rows: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (n, dim) uint8, zero_point and step (n,) bfloat16 bits; every code the nearest, as `reference.quantize`."""
    top = np.float32(2**bits - 1)
    if bits == 8:
        zero_point = bf16_down(rows.min(axis=1) + np.float32(0))
        distance = rows.max(axis=1) - bf16_value(zero_point).astype(np.float64) + 0.0    # +0 for a row of -0
        step = bf16_up(distance / np.float64(top))
    else:
        first, last = np.array([line_of(row, bits) for row in rows]).reshape(-1, 2).T
        zero_point = bf16_down(first.astype(np.float32))
        step = to_bf16(np.maximum((last - bf16_value(zero_point).astype(np.float64)) / np.float64(top), 0))
    zero, width = bf16_value(zero_point)[:, None], bf16_value(step)[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.float32(1) / width
        scaled = np.where(inverse <= np.float32(1e37), (rows - zero) * inverse, (rows - zero) / width)
    scaled = np.where(width == 0, np.float32(0), scaled) + np.float32(0.5)
    return np.floor(np.clip(scaled, np.float32(0), top)).astype(np.uint8), zero_point, step


def encode_nearest(rows: torch.Tensor, bits: int) -> bytes:
    """Bytes of a message of rows of one width of 1 to 16 bits, rounded to the nearest."""
    values = widen(rows)
    if bits == 16:
        elements = narrow(values, torch.bfloat16) if rows.dtype == torch.float32 else rows
        return elements.view(torch.int16).numpy().tobytes()
    codes, zero_point, step = quantize_nearest(values, bits)
    return np.stack([zero_point, step], axis=1).astype("<u2").tobytes() + pack(codes, bits).tobytes()


def receive_nearest(values: np.ndarray, bits: int) -> np.ndarray:
    """What the receiver of float32 rows of 1 to 8 bits holds, (n, dim) float32."""
    return dequantize(*quantize_nearest(values, bits))
