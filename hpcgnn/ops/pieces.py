"""Free pieces of a range of addresses, as plain numbers: the memory behind them is the arena's.

`Pieces` gives the smallest free piece that is large enough. `MovingPieces` moves chunks of memory between pieces, so
that several small free pieces become a large one. `Places` joins both: small tensors stay in place, large ones may
move.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

MIN_BYTES = 1 << 18              # smaller tensors come from torch
ALIGNMENT = 1 << 12              # bytes
CHUNK = 1 << 21                  # bytes of a huge page, the unit in which memory is moved
LEAST_MOVING = 8 * CHUNK         # a smaller tensor would waste too much of its last chunk
FIXED_SHARE = 1 / 4              # share of the addresses in which nothing moves


class Move(NamedTuple):
    source: int
    target: int
    num_bytes: int


class Pieces:
    """Free parts of a range of addresses, adjacent ones joined; `top` is the end of the highest address ever taken."""

    def __init__(self, start: int, num_bytes: int):
        self._free = [(start, num_bytes)] if num_bytes else []    # (start, size), ascending
        self.top = start

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self._free)

    def take(self, num_bytes: int) -> int:
        """Start of a piece, cut from the smallest free part that is large enough; MemoryError if there is none."""
        smallest = None
        for i, (_, size) in enumerate(self._free):
            if size >= num_bytes and (smallest is None or size < smallest[0]):
                smallest = size, i
        if smallest is None:
            raise MemoryError(f"no room for {num_bytes} bytes among the arena's free pieces")
        size, i = smallest
        start = self._free[i][0]
        self._free[i:i + 1] = [(start + num_bytes, size - num_bytes)] if size > num_bytes else []
        self.top = max(self.top, start + num_bytes)
        return start

    def take_or_none(self, num_bytes: int) -> int | None:
        try:
            return self.take(num_bytes)
        except MemoryError:
            return None

    def take_smallest(self, most: int) -> tuple[int, int] | None:
        """Take the smallest free part, or its first `most` bytes: its start and size; None if nothing is free."""
        if not self._free:
            return None
        size = min(min(size for _, size in self._free), most)
        return self.take(size), size

    def give_back(self, start: int, size: int) -> None:
        # Join with the free part after it, then with the one before it.
        i = bisect.bisect(self._free, (start, size))
        if i < len(self._free) and start + size == self._free[i][0]:
            size += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == start:
            start, size = self._free[i - 1][0], self._free[i - 1][1] + size
            i -= 1
            del self._free[i]
        self._free.insert(i, (start, size))


class MovingPieces:
    """Pieces that get memory from several smaller free ones; `num_filled` counts bytes with memory, taken or free."""

    def __init__(self, start: int, num_bytes: int):
        self._free, self._bare = Pieces(start, 0), Pieces(start, num_bytes)     # addresses with memory, and without
        self.num_filled = 0

    def take(self, num_bytes: int) -> tuple[int, list[Move]]:
        """Start of a piece, and the moves that fill it; the rest gets memory when it is first written.

        Raises MemoryError if no addresses are left.
        """
        start = self._free.take_or_none(num_bytes)
        if start is not None:
            return start, []
        # Take new addresses, and move the memory of small free pieces there until they are full.
        start, moves, num_moved = self._bare.take(num_bytes), [], 0
        while num_moved < num_bytes and (part := self._free.take_smallest(num_bytes - num_moved)) is not None:
            moves.append(Move(part[0], start + num_moved, part[1]))
            num_moved += part[1]
        for source, _, size in moves:
            self._bare.give_back(source, size)
        self.num_filled += num_bytes - num_moved
        return start, moves

    def give_back(self, start: int, size: int, has_memory: bool = True) -> None:
        (self._free if has_memory else self._bare).give_back(start, size)
        self.num_filled -= 0 if has_memory else size

    @property
    def num_free(self) -> int:
        return self._free.num_bytes

    def drop_free(self) -> Iterator[tuple[int, int]]:
        """Yield start and size of each free piece with memory; it counts as one without from then on."""
        while (part := self._free.take_smallest(self.num_filled)) is not None:
            self.give_back(*part, has_memory=False)
            yield part


class Places:
    """Places of tensors in `num_bytes` of addresses, a multiple of 4 chunks.

    Large tensors are whole chunks that can be moved, small ones lie close together; without `can_move` all are small.
    """

    def __init__(self, num_bytes: int, can_move: bool = True):
        self._border = int(num_bytes * FIXED_SHARE) if can_move else num_bytes
        self._moves = can_move
        self._fixed, self._moving = Pieces(0, self._border), MovingPieces(self._border, num_bytes - self._border)

    @property
    def num_filled(self) -> int:
        return self._fixed.top + self._moving.num_filled

    def take(self, num_bytes: int) -> tuple[int, int, list[Move]]:
        """Start and size of a piece for a tensor of `num_bytes`, and the moves that fill it; may raise MemoryError."""
        if num_bytes < LEAST_MOVING or not self._moves:
            size = max(1, -(-num_bytes // ALIGNMENT)) * ALIGNMENT
            return self._fixed.take(size), size, []
        size = -(-num_bytes // CHUNK) * CHUNK
        start, moves = self._moving.take(size)
        return start, size, moves

    def give_back(self, start: int, size: int, has_memory: bool = True) -> None:
        if start < self._border:
            self._fixed.give_back(start, size)
        else:
            self._moving.give_back(start, size, has_memory)

    def keeps_memory(self, start: int) -> bool:
        """Whether a piece's memory may be moved to others when it is free."""
        return start >= self._border

    @property
    def num_free(self) -> int:
        return self._moving.num_free

    def drop_free(self) -> Iterator[tuple[int, int]]:
        """Yield start and size of each free piece of memory that may be moved; it has none from then on."""
        return self._moving.drop_free()
