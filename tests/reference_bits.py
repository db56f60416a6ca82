"""NumPy oracles of matrices of codes as planes of bits, from QGTC's equations. Nothing of hpcgnn is called."""

from __future__ import annotations

import numpy as np


def planes_of(codes: np.ndarray, bit_width: int) -> np.ndarray:
    """Bits of each code, (bit_width, *codes.shape): plane p holds bit p."""
    return np.stack([codes.astype(np.int64) >> p & 1 for p in range(bit_width)])


def packed_words(lines: np.ndarray, bit_width: int, line_padding: int = 8) -> np.ndarray:
    """Words of lines of codes (num_lines, length), one column at a time: (bit_width, padded lines, words) int32."""
    num_lines, length = lines.shape
    num_padded = -(-num_lines // line_padding) * line_padding
    words = np.zeros((bit_width, num_padded, -(-length // 128) * 4), np.uint32)
    for k in range(length):
        words[:, :num_lines, k // 32] |= planes_of(lines[:, k], bit_width).astype(np.uint32) << np.uint32(k % 32)
    return words.view(np.int32)


def floor_codes(values: np.ndarray, bit_width: int, low: float, high: float) -> np.ndarray:
    """Eq. (2) in float64."""
    scale = (float(high) - float(low)) / 2**bit_width
    return np.clip(np.floor((values.astype(np.float64) - low) / scale), 0, 2**bit_width - 1).astype(np.int64)


def tiles_with_an_entry(matrix: np.ndarray) -> int:
    """Tiles of 8 x 128 that hold a one."""
    rows, columns = np.nonzero(matrix)
    return len(set(zip((rows // 8).tolist(), (columns // 128).tolist(), strict=True)))
