"""NumPy oracle of rotated codes: the rotation of a row, its codes and step, and what a receiver reads.

Written from DRIVE (Vargaftik et al., NeurIPS 2021) and EDEN (ICML 2022), one row at a time, each float32 operation
rounded once. Nothing of hpcgnn is called.
"""

from __future__ import annotations

import numpy as np
from reference import bf16_value, draws_of, pack
from reference_quantization import sum_sixteen, to_bf16

F = np.float32
LARGEST_BLOCK, DRAWS_A_PASS, SIGNS_A_DRAW, MIXED_TWICE = 1024, 2048, 16, 32
GAUSSIAN_STEP = {2: F(0.9957), 4: F(0.3352), 8: F(0.0308)}    # Max, 1960, uniform steps
LARGEST_BF16, LEAST_UNIT = 0x7F7F, 2.0**-126


def passes_of(dim: int) -> tuple[int, list[int]]:
    """Columns of a pass, and where each begins: side by side, one more that ends with the row, and the last of those
    that lie side by side again. Where one has the whole row, and that is narrow, it comes twice.
    """
    block = LARGEST_BLOCK
    while block > dim:
        block //= 2
    starts = list(range(0, dim - block + 1, block))
    if dim % block:
        return block, [*starts, dim - block, starts[-1]]
    return block, 2 * starts if dim <= MIXED_TWICE else starts


def signs_of(node_id: int, number: int, columns: np.ndarray, seed: int, epoch: int, stream: int) -> np.ndarray:
    """Whether pass `number` turns the sign of each column: a bit of the draw that 16 columns share."""
    address = DRAWS_A_PASS * number + columns // SIGNS_A_DRAW
    draws = draws_of(np.array([node_id]), int(address.max()) + 1, seed, epoch, stream)[0]
    return (draws[address].astype(np.int64) >> (columns % SIGNS_A_DRAW) & 1).astype(bool)


def hadamard(values: np.ndarray) -> np.ndarray:
    """Walsh-Hadamard transform of 2^k float32 values by butterflies of strides 1, 2, 4, ..."""
    stride = 1
    while stride < len(values):
        pairs = values.reshape(-1, 2, stride)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        stride *= 2
    return values


def rotate(row: np.ndarray, node_id: int, *key: int) -> np.ndarray:
    """A row (dim,) float32 after all passes; key is (seed, epoch, stream)."""
    row, (block, starts) = row.copy(), passes_of(len(row))
    scale = F(1 / np.sqrt(block))
    for number, start in enumerate(starts):
        columns = np.arange(start, start + block)
        scaled = row[columns] * scale
        row[columns] = hadamard(np.where(signs_of(node_id, number, columns, *key), -scaled, scaled))
    return row


def rotate_back(row: np.ndarray, node_id: int, *key: int) -> np.ndarray:
    """The passes of `rotate` undone, last one first."""
    row, (block, starts) = row.copy(), passes_of(len(row))
    scale = F(1 / np.sqrt(block))
    for number, start in reversed(list(enumerate(starts))):
        columns = np.arange(start, start + block)
        scaled = hadamard(row[columns]) * scale
        row[columns] = np.where(signs_of(node_id, number, columns, *key), -scaled, scaled)
    return row


def unit_of(row: np.ndarray) -> np.float32:
    """The power of two at or below the largest magnitude; a normal number."""
    _, exponent = np.frexp(np.abs(row).max())
    return F(max(np.ldexp(1.0, int(exponent) - 1), LEAST_UNIT))


def code_row(row: np.ndarray, bits: int, is_nearest: bool, node_id: int, *key: int) -> tuple[np.ndarray, int]:
    """Codes (dim,) uint8 of a row (dim,) float32, and the bfloat16 bits of its step."""
    if not row.any():
        return np.zeros(len(row), np.uint8), 0
    unit, top = unit_of(row), F(2**bits - 1)
    y = rotate(row * (F(1) / unit), node_id, *key)
    energy = sum_sixteen(y * y)
    if bits == 1:
        code = (y >= 0).astype(F)
    else:
        delta = GAUSSIAN_STEP[bits] * np.sqrt(energy / F(len(row)))
        code = np.clip(np.floor(y * (F(1) / delta) + F(2 ** (bits - 1))), F(0), top)
    q = code - top / F(2)
    product = sum_sixteen(y * q)
    step = product / sum_sixteen(q * q) if is_nearest else energy / product
    with np.errstate(over="ignore"):
        return code.astype(np.uint8), min(int(to_bf16(np.array([step * unit]))[0]), LARGEST_BF16)


def decode_row(code: np.ndarray, step: int, bits: int, node_id: int, *key: int) -> np.ndarray:
    """What the receiver computes of a row's codes and step, (dim,) float32."""
    step_value = bf16_value(np.array([step], np.uint16))[0]
    with np.errstate(over="ignore", invalid="ignore"):
        return rotate_back((code.astype(F) - F(2**bits - 1) / F(2)) * step_value, node_id, *key)


def encode_rotated(rows: np.ndarray, widths: np.ndarray, is_nearest: bool, node_id: np.ndarray,
                   *key: int) -> tuple[bytes, np.ndarray]:
    """A message of float32 rows (n, dim) of 1 to 8 bits, and the rows that its receiver computes."""
    coded = [code_row(row, int(bits), is_nearest, node, *key)
             for row, bits, node in zip(rows, widths, node_id, strict=True)]
    steps = np.array([step for _, step in coded], "<u2").tobytes()
    payload = b"".join(pack(code[None], int(bits)).tobytes() for (code, _), bits in zip(coded, widths, strict=True))
    received = [decode_row(*row, int(bits), node, *key)
                for row, bits, node in zip(coded, widths, node_id, strict=True)]
    return steps + payload, np.array(received)
