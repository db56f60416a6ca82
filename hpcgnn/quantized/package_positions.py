"""Positions of the values of packed rows: a bitmap or, where it is short, a list of columns a row, as bits.

Values are not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn._ext import package as kernels

SLACK_BYTES = 16   # that the kernels may set to zero after what they write


@dataclass
class PositionWriter:
    """Encodes positions as rows come; memory: the positions so far, and bitmaps of fewer than `interval` rows.

    Attributes
    ----------
    dim : int
    interval : int            rows that share a block, which begins where the index says
    """

    dim: int
    interval: int

    def __post_init__(self) -> None:
        self._waiting = np.empty((0, -(-self.dim // 8)), np.uint8)
        self._num_bits = 0
        self._positions, self._index = np.zeros(0, np.uint8), np.zeros(0, np.int64)

    def append(self, bitmap: np.ndarray) -> None:
        """Encode the next rows, (num_rows, ceil(dim / 8)) uint8 whose bits past the last column are zero."""
        rows = np.concatenate([self._waiting, bitmap]) if len(self._waiting) else bitmap
        num_whole = len(rows) // self.interval * self.interval
        self._num_bits, self._positions, self._index = self._written(rows[:num_whole], self._positions)
        self._waiting = rows[num_whole:].copy()

    def finish(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Return of all rows: bits, (ceil(bits / 8),) uint8 positions, and (num_blocks,) int64 first bits of blocks."""
        # To a copy: what waits may get more rows, and is then written again.
        num_bits, positions, index = self._written(self._waiting, self._positions.copy())
        return num_bits, positions[:-(-num_bits // 8)], index

    def _written(self, rows: np.ndarray, positions: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        """Return `positions` so far, and after them those of blocks of rows, of which the last one may be short."""
        num_blocks = -(-len(rows) // self.interval)
        counts, gap_bits = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
        count_width, index = np.empty(num_blocks, np.uint8), np.empty(num_blocks, np.int64)
        num_bits = self._num_bits + kernels.plan_positions(rows, self.dim, self.interval, counts, gap_bits, count_width)
        positions = grown(positions, num_bits // 8 + SLACK_BYTES)
        kernels.write_positions(rows, self.dim, self.interval, counts, gap_bits, count_width, self._num_bits, positions,
                                index)
        return num_bits, positions, np.concatenate([self._index, index])


def grown(array: np.ndarray, size: int) -> np.ndarray:
    """Return `array` with at least `size` entries, zero after its own."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array)), array.dtype)
    larger[:len(array)] = array
    return larger
