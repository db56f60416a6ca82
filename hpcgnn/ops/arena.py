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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch

from hpcgnn.ops.pieces import CHUNK, MIN_BYTES, Move, Places

MAP_NORESERVE = 0x4000           # from Linux's sys/mman.h
MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 1, 2, 4
OVERSIZE = 16                    # reserved addresses, in multiples of the physical memory; unused ones cost nothing

logger = logging.getLogger(__name__)


class _Block:
    def __init__(self, arena: Arena, start: int, num_bytes: int):
        self._arena, self._piece = arena, (start, num_bytes)      # the arena lives as long as its tensors
        self.__array_interface__ = {"version": 3, "shape": (num_bytes,), "typestr": "|u1",
                                    "data": (arena.address + start, False)}

    def __del__(self) -> None:
        self._arena.returned.append(self._piece)


class Arena:
    """Makes tensors in one large memory mapping, at addresses that `Places` chooses.

    Raises OSError if the system refuses the mapping.
    """

    is_limited = False      # whether tables may lie on a disk, see `hpcgnn.ops.limited_arena`
    row_bytes: int | None = None      # bytes of a row that a sum may have in memory; None: any

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

    def keep_long(self, tensor: torch.Tensor) -> None:
        """Note that a tensor is read late, or again and again: it goes to the disk before others, if one is used."""

    def set_aside(self, tensor: torch.Tensor) -> None:
        """Note that a tensor is not read for a while: it goes to the disk, if one is used, before those noted later."""

    def make_room(self, num_bytes: int) -> None:
        """Before something else than tables takes `num_bytes` of memory: tables go to the disk, if one is used."""

    def keeping(self) -> AbstractContextManager:
        return nullcontext()

    def in_memory(self, tensor: torch.Tensor) -> AbstractContextManager:
        """Within the block, a table that lies on a disk is in memory if there is room, since its rows are read in the
        order of the edges.
        """
        return nullcontext()

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
            LIBC.madvise(self.address + move.source, move.num_bytes, mmap.MADV_DONTNEED)
            return
        self._move(Move(move.source, move.target, half))
        self._move(Move(move.source + half, move.target + half, move.num_bytes - half))


LIBC = ctypes.CDLL(None)
LIBC.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
LIBC.mremap.restype = ctypes.c_void_p
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _moves_pages(source: int, target: int, num_bytes: int) -> bool:
    flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP
    return LIBC.mremap(source, num_bytes, num_bytes, flags, target) == target


def system_moves_pages() -> bool:
    page = mmap.PAGESIZE
    trial = mmap.mmap(-1, 2 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    trial[0] = 1
    address = np.frombuffer(trial, np.uint8).ctypes.data
    return _moves_pages(address, address + page, page) and (trial[0], trial[page]) == (0, 1)


def addresses() -> int:
    """Bytes of addresses of an arena, a multiple of 4 chunks."""
    return -(-OVERSIZE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (4 * CHUNK)) * 4 * CHUNK


def _open_arena() -> Arena | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        logger.warning("no arena: this system has no huge pages on demand; every tensor is allocated anew")
        return None
    can_move = system_moves_pages()
    if not can_move:
        logger.info("pages can't be moved on this system: free memory in too small parts stays unused")
    try:
        return Arena(addresses(), can_move)
    except OSError as error:
        logger.warning("no arena: %s; every tensor is allocated anew", error)
        return None


_ARENA = _open_arena()


@contextmanager
def using(arena: Arena) -> Iterator[None]:
    """Within the block, large tensors come from another arena."""
    global _ARENA
    earlier, _ARENA = _ARENA, arena
    try:
        yield
    finally:
        _ARENA = earlier


def is_limited() -> bool:
    return _ARENA is not None and _ARENA.is_limited


def keeping() -> AbstractContextManager:
    return nullcontext() if _ARENA is None else _ARENA.keeping()


def in_memory(tensor: torch.Tensor) -> AbstractContextManager:
    return nullcontext() if _ARENA is None else _ARENA.in_memory(tensor)


def keep_long(tensor: torch.Tensor) -> torch.Tensor:
    if _ARENA is not None:
        _ARENA.keep_long(tensor)
    return tensor


def set_aside(tensor: torch.Tensor) -> torch.Tensor:
    if _ARENA is not None:
        _ARENA.set_aside(tensor)
    return tensor


def make_room(num_bytes: int) -> None:
    if _ARENA is not None:
        _ARENA.make_room(num_bytes)


def row_bytes_at_once() -> int | None:
    """Bytes of a row that a sum may have in memory, the same on all ranks; None: any."""
    return None if _ARENA is None else _ARENA.row_bytes


def empty_table(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """An uninitialized tensor that outlives epochs: torch's, but of the arena if memory is limited."""
    return keep_long(empty(shape, dtype, device)) if is_limited() else torch.empty(shape, dtype=dtype, device=device)


def empty_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if not is_limited():
        return np.empty(shape, dtype)
    return empty_table(shape, torch.from_numpy(np.empty(0, dtype)).dtype).numpy()


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32,
          device: torch.device | None = None) -> torch.Tensor:
    """An uninitialized tensor: on the host from the arena if it is large, on a device from torch's allocator."""
    if device is not None and device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    if _ARENA is None or math.prod(shape) * dtype.itemsize < MIN_BYTES:
        return torch.empty(shape, dtype=dtype)
    return _ARENA.empty(shape, dtype)
