"""SharedMemory: bytes that all ranks of a node read and write, without a name that could be left behind."""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError

HALVES = 2
ALIGNMENT = 64      # bytes; each half begins on a cache line


class SharedMemory:
    """Hold two halves of memory that the ranks of a node share; each is grown when more is asked of it.

    The memory is a file without a name: it lives as long as some rank has it mapped, and needs no room in /dev/shm.

    Parameters
    ----------
    node : MPI communicator      of ranks that run under one kernel
    """

    def __init__(self, node: MPI.Comm):
        self._node = node
        self._bytes = torch.empty(0, dtype=torch.uint8)

    @property
    def num_bytes(self) -> int:
        """Return the size of both halves."""
        return len(self._bytes)

    def rows(self, half: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """Collective in the node: return rows at the start of a half, the same memory on all ranks; their values are
        what was last written there, and are lost where the memory grows.

        Parameters
        ----------
        half : {0, 1}

        Raises
        ------
        KernelError      on all ranks: the system gives no memory, or ranks can't reach each other's
        """
        num_bytes = shape[0] * shape[1] * dtype.itemsize
        if num_bytes > self.num_bytes // HALVES:
            self._grow(-(-num_bytes // ALIGNMENT) * ALIGNMENT)
        start = half * (self.num_bytes // HALVES)
        return self._bytes[start:start + num_bytes].view(dtype).view(shape)

    def release(self) -> None:
        """Give the memory back once no rank of the node uses it any more."""
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def _grow(self, half_bytes: int) -> None:
        self.release()
        made, problem = None, None
        if self._node.rank == 0:
            try:
                made = os.memfd_create("hpcgnn")
                os.ftruncate(made, HALVES * half_bytes)
            except OSError as error:
                problem = error
        path = self._node.bcast(None if problem else f"/proc/{os.getpid()}/fd/{made}")
        if path is not None:
            try:
                self._bytes = _mapped(path, HALVES * half_bytes)
            except OSError as error:
                problem = error
        problems = [text for text in self._node.allgather(problem and str(problem)) if text]
        if made is not None:
            os.close(made)
        if problems:
            raise KernelError(f"the ranks of this node can't share {HALVES * half_bytes:,} bytes of memory "
                              f"({problems[0]}); use --set nodes_aware=off")


def _mapped(path: str, num_bytes: int) -> torch.Tensor:
    """Return a file's bytes, (num_bytes,) uint8, which stay when it is closed."""
    file = os.open(path, os.O_RDWR)
    try:
        return torch.from_numpy(np.frombuffer(mmap.mmap(file, num_bytes), np.uint8))
    finally:
        os.close(file)
