"""A fully associative cache of rows of any size, that is simulated use by use. What a row holds is not known here."""

from __future__ import annotations

import numpy as np

from hpcgnn._ext import row_cache as kernels
from hpcgnn.errors import ConfigError


class RowCache:
    """Holds the rows that were used last, as many as fit; empty at first.

    Parameters
    ----------
    num_bytes : (num_rows,) int64      that each row takes; one that is larger than the cache passes by
    capacity : int                     bytes

    Raises
    ------
    ConfigError                        more rows than 32-bit ids can name
    """

    def __init__(self, num_bytes: np.ndarray, capacity: int) -> None:
        if len(num_bytes) >= np.iinfo(np.int32).max:
            raise ConfigError(f"a cache can name {np.iinfo(np.int32).max - 1} rows, and there are {len(num_bytes)}")
        self.num_bytes, self.capacity, self.held_bytes = np.ascontiguousarray(num_bytes, np.int64), capacity, 0
        self._newer = np.full(len(num_bytes) + 1, -1, np.int32)
        self._older = np.full(len(num_bytes) + 1, -1, np.int32)
        self._newer[-1] = self._older[-1] = len(num_bytes)

    def missed(self, row: np.ndarray) -> np.ndarray:
        """Use rows one after the other, and return which were not held, (num_uses,) bool.

        Parameters
        ----------
        row : (num_uses,) integer      below num_rows, which is not checked
        """
        missed = np.zeros(len(row), np.uint8)
        self.held_bytes = kernels.use_rows(np.ascontiguousarray(row, np.int32), self.num_bytes, self.capacity,
                                           self.held_bytes, self._newer, self._older, missed)
        return missed.astype(bool)
