"""Pieces: which parts of a range of addresses are free, best fit first. No memory is known here."""

from __future__ import annotations

import bisect

MIN_BYTES = 1 << 18              # a tensor that is smaller is torch's own
ALIGNMENT = 1 << 12              # bytes


class Pieces:
    """Free parts of the addresses from 0 on; free neighbours are joined.

    Parameters
    ----------
    num_bytes : int      of addresses
    """

    def __init__(self, num_bytes: int):
        self._free = [(0, num_bytes)]    # (start, size), ascending

    def take(self, num_bytes: int) -> int:
        """Return the start of a piece that is free no longer, the smallest that is large enough.

        Raises
        ------
        MemoryError      there is none
        """
        fitting = [(size, i) for i, (_, size) in enumerate(self._free) if size >= num_bytes]
        if not fitting:
            raise MemoryError(f"no room for {num_bytes} bytes among the arena's free pieces")
        size, i = min(fitting)
        start = self._free[i][0]
        self._free[i:i + 1] = [(start + num_bytes, size - num_bytes)] if size > num_bytes else []
        return start

    def give_back(self, start: int, size: int) -> None:
        """Have a piece that was taken be free."""
        i = bisect.bisect(self._free, (start, size))
        if i < len(self._free) and start + size == self._free[i][0]:
            size += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == start:
            start, size = self._free[i - 1][0], self._free[i - 1][1] + size
            i -= 1
            del self._free[i]
        self._free.insert(i, (start, size))


def padded(num_bytes: int) -> int:
    """Return the bytes of the piece that a tensor takes."""
    return max(1, -(-num_bytes // ALIGNMENT)) * ALIGNMENT
