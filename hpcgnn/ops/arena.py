"""Memory of activations, gradients and messages, reused from epoch to epoch, on huge pages.

A tensor from the arena is an ordinary tensor: its piece becomes free with the last reference to it. Small tensors take
the smallest free piece that is large enough. If no free piece is large enough for a large tensor, the pages of several
are moved together through the page table, in microseconds and without copying a byte: free pieces of 4 and 6 MiB become
one of 10 MiB at new addresses. So the arena never holds more memory than its tensors had at their peak.

`hpcgnn.ops.pieces` computes with addresses as plain numbers; `Arena` owns the memory.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import os
from collections import deque

import numpy as np
import torch

from hpcgnn.ops.pieces import CHUNK, MIN_BYTES, Move, Places

MAP_NORESERVE = 0x4000           # from Linux's sys/mman.h
MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 1, 2, 4
OVERSIZE = 16                    # reserved addresses, in multiples of the physical memory; unused ones cost nothing

logger = logging.getLogger(__name__)


class _Block:
    def __init__(self, arena: Arena, start: int, num_bytes: int):
        self._returned, self._piece = arena.returned, (start, num_bytes)
        self.__array_interface__ = {"version": 3, "shape": (num_bytes,), "typestr": "|u1",
                                    "data": (arena.address + start, False)}

    def __del__(self) -> None:
        self._returned.append(self._piece)


class Arena:
    """Makes tensors in one large memory mapping, at addresses that `Places` chooses.

    Raises OSError if the system refuses the mapping.
    """

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
        # mremap may refuse a range of pages that came from different earlier moves, so move each half by itself. The
        # memory of a chunk that can't be moved goes back to the system, and its target gets new pages when written.
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
        logger.info("pages can't be moved on this system: free memory in too small parts stays unused")
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
