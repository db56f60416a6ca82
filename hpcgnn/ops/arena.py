"""Memory of activations, gradients and messages, reused from epoch to epoch, on huge pages.

A tensor from the arena is an ordinary tensor: its piece becomes free when the last reference to it goes. Small tensors
take the smallest free piece that is large enough. If no free piece is large enough for a large tensor, the pages of
several are moved together through the page table, in microseconds and without copying a byte: free pieces of 4 and
6 MiB become one of 10 MiB at new addresses. So the arena never uses more memory than tensors had at once.

`Pieces`, `MovingPieces` and `Places` compute with addresses as plain numbers; `Arena` owns the memory.
"""

from __future__ import annotations

import bisect
import ctypes
import logging
import math
import mmap
import os
from collections import deque
from typing import NamedTuple

import numpy as np
import torch

MIN_BYTES = 1 << 18              # a tensor that is smaller is torch's own
ALIGNMENT = 1 << 12              # bytes
CHUNK = 1 << 21                  # bytes of a huge page: what memory is moved in
LEAST_MOVING = 8 * CHUNK         # a tensor that is smaller would waste too much of its last chunk
FIXED_SHARE = 1 / 4              # of the addresses: where nothing moves


class Move(NamedTuple):
    source: int
    target: int
    num_bytes: int


class Pieces:
    """Free parts of a range of addresses, adjacent ones joined; `top` is one more than the highest one ever taken."""

    def __init__(self, start: int, num_bytes: int):
        self._free = [(start, num_bytes)] if num_bytes else []    # (start, size), ascending
        self.top = start

    def take(self, num_bytes: int) -> int:
        """Start of a piece, cut from the smallest free part that is large enough; MemoryError if there is none."""
        start = self.take_or_none(num_bytes)
        if start is None:
            raise MemoryError(f"no room for {num_bytes} bytes among the arena's free pieces")
        return start

    def take_or_none(self, num_bytes: int) -> int | None:
        fitting = [(size, i) for i, (_, size) in enumerate(self._free) if size >= num_bytes]
        if not fitting:
            return None
        size, i = min(fitting)
        start = self._free[i][0]
        self._free[i:i + 1] = [(start + num_bytes, size - num_bytes)] if size > num_bytes else []
        self.top = max(self.top, start + num_bytes)
        return start

    def take_smallest(self, most: int) -> tuple[int, int] | None:
        """Take the smallest free part, or its first `most` bytes: its start and size; None if nothing is free."""
        if not self._free:
            return None
        size = min(min(size for _, size in self._free), most)
        return self.take(size), size

    def give_back(self, start: int, size: int) -> None:
        # Join with the free part behind, then with the one before.
        i = bisect.bisect(self._free, (start, size))
        if i < len(self._free) and start + size == self._free[i][0]:
            size += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == start:
            start, size = self._free[i - 1][0], self._free[i - 1][1] + size
            i -= 1
            del self._free[i]
        self._free.insert(i, (start, size))


class MovingPieces:
    """Pieces that get memory from several smaller free ones; `num_filled` bytes have memory, taken or free."""

    def __init__(self, start: int, num_bytes: int):
        self._free, self._bare = Pieces(start, 0), Pieces(start, num_bytes)     # with memory, and without
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

    def give_back(self, start: int, size: int) -> None:
        self._free.give_back(start, size)


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

    def give_back(self, start: int, size: int) -> None:
        (self._fixed if start < self._border else self._moving).give_back(start, size)


MAP_NORESERVE = 0x4000           # of Linux's sys/mman.h
MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 1, 2, 4
OVERSIZE = 16                    # addresses reserved, in physical memories: they cost nothing until they are used

logger = logging.getLogger(__name__)


class _Block:
    def __init__(self, arena: Arena, start: int, num_bytes: int):
        self._returned, self._piece = arena.returned, (start, num_bytes)
        self.__array_interface__ = {"version": 3, "shape": (num_bytes,), "typestr": "|u1",
                                    "data": (arena.address + start, False)}

    def __del__(self) -> None:
        self._returned.append(self._piece)


class Arena:
    """Places in one large mapping; see `Places`. Raises OSError if the system refuses the addresses."""

    def __init__(self, num_bytes: int, can_move: bool = True):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._mapping = mmap.mmap(-1, num_bytes + CHUNK, flags=flags)
        self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.address = -(-np.frombuffer(self._mapping, np.uint8).ctypes.data // CHUNK) * CHUNK
        self._places = Places(num_bytes, can_move)
        # Finalizers run at any moment, also inside `empty`: they only append here.
        self.returned: deque[tuple[int, int]] = deque()

    @property
    def num_filled(self) -> int:
        return self._places.num_filled

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized tensor. Raises MemoryError if the arena is full."""
        num_bytes = math.prod(shape) * dtype.itemsize
        block = _Block(self, *self._take(num_bytes))
        return torch.from_numpy(np.asarray(block)[:num_bytes]).view(dtype).view(shape)

    def _take(self, num_bytes: int) -> tuple[int, int]:
        while self.returned:
            self._places.give_back(*self.returned.popleft())
        start, size, moves = self._places.take(num_bytes)
        for move in moves:
            self._move(move)
        return start, size

    def _move(self, move: Move) -> None:
        if _moves_pages(self.address + move.source, self.address + move.target, move.num_bytes):
            return
        # A system may move at most what was moved together: try halves; pages that stay are given back.
        half = move.num_bytes // CHUNK // 2 * CHUNK
        if not half:
            _LIBC.madvise(self.address + move.source, move.num_bytes, mmap.MADV_DONTNEED)
            return
        self._move(Move(move.source, move.target, half))
        self._move(Move(move.source + half, move.target + half, move.num_bytes - half))


_LIBC = ctypes.CDLL(None)
_LIBC.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_LIBC.mremap.restype = ctypes.c_void_p
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _moves_pages(source: int, target: int, num_bytes: int) -> bool:
    flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP
    return _LIBC.mremap(source, num_bytes, num_bytes, flags, target) == target


def _system_moves_pages() -> bool:
    page = mmap.PAGESIZE
    trial = mmap.mmap(-1, 2 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    trial[0] = 1
    address = np.frombuffer(trial, np.uint8).ctypes.data
    return _moves_pages(address, address + page, page) and (trial[0], trial[page]) == (0, 1)


def _open_arena() -> Arena | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        logger.warning("no arena: this system has no huge pages on demand; every tensor is allocated anew")
        return None
    can_move = _system_moves_pages()
    if not can_move:
        logger.info("pages can't be moved on this system: memory that is free in parts too small stays unused")
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return Arena(-(-OVERSIZE * physical // (4 * CHUNK)) * 4 * CHUNK, can_move)
    except OSError as error:
        logger.warning("no arena: %s; every tensor is allocated anew", error)
        return None


_ARENA = _open_arena()


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32,
          device: torch.device | None = None) -> torch.Tensor:
    """An uninitialized tensor: on the host from the arena if it is large, on a device from torch's allocator."""
    if device is not None and device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    if _ARENA is None or math.prod(shape) * dtype.itemsize < MIN_BYTES:
        return torch.empty(shape, dtype=dtype)
    return _ARENA.empty(shape, dtype)
