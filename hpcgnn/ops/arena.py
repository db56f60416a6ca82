"""Arena: the memory of activations, gradients and messages, reused from epoch to epoch and lying on huge pages.

A tensor from the arena is an ordinary tensor: its memory returns when the last reference to it goes.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
from collections import deque

import numpy as np
import torch

from hpcgnn.ops.pieces import MIN_BYTES, Pieces, padded

MAP_NORESERVE = 0x4000           # of Linux's sys/mman.h
OVERSIZE = 4                     # addresses reserved, in physical memories: they cost nothing until they are used

logger = logging.getLogger(__name__)


class _Block:
    """Owner of a piece of the arena, and what NumPy calls the base of the array that lies in it."""

    def __init__(self, arena: Arena, start: int, num_bytes: int):
        self._returned, self._piece = arena.returned, (start, num_bytes)
        self.__array_interface__ = {"version": 3, "shape": (num_bytes,), "typestr": "|u1",
                                    "data": (arena.address + start, False)}

    def __del__(self) -> None:
        self._returned.append(self._piece)


class Arena:
    """Pieces of one large mapping, best fit first; free neighbours are joined.

    Parameters
    ----------
    num_bytes : int      of addresses

    Raises
    ------
    OSError              the system refuses the addresses
    """

    def __init__(self, num_bytes: int):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._mapping = mmap.mmap(-1, num_bytes, flags=flags)
        self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.address = np.frombuffer(self._mapping, np.uint8).ctypes.data
        self._pieces = Pieces(num_bytes)
        # Finalizers run at any moment, also inside `empty`: they only append here.
        self.returned: deque[tuple[int, int]] = deque()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor with whatever values its memory holds.

        Raises
        ------
        MemoryError      the arena is full
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        size = padded(num_bytes)
        block = _Block(self, self._take(size), size)
        return torch.from_numpy(np.asarray(block)[:num_bytes]).view(dtype).view(shape)

    def _take(self, num_bytes: int) -> int:
        while self.returned:
            self._pieces.give_back(*self.returned.popleft())
        return self._pieces.take(num_bytes)


def _open_arena() -> Arena | None:
    """Return the process's arena, or None, with a logged reason, where the system has no such memory."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        logger.warning("no arena: this system has no huge pages on demand; every tensor is allocated anew")
        return None
    try:
        return Arena(OVERSIZE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except OSError as error:
        logger.warning("no arena: %s; every tensor is allocated anew", error)
        return None


_ARENA = _open_arena()


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32,
          device: torch.device | None = None) -> torch.Tensor:
    """An uninitialized tensor: on the host, where no device is named, from the arena if it is large; on a device from
    torch's allocator, which keeps what is freed too.
    """
    if device is not None and device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    if _ARENA is None or math.prod(shape) * dtype.itemsize < MIN_BYTES:
        return torch.empty(shape, dtype=dtype)
    return _ARENA.empty(shape, dtype)
