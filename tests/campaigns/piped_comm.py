"""A communicator of two forked processes over a pipe: the few calls of mpi4py that hpcgnn makes, without an MPI.

Starting real ranks takes seconds, forking two milliseconds; what a campaign tries here fails or holds before a message
matters. Sizes that disagree end as they do under MPI: in an error, or in a wait without end.
"""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import sys
import threading
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

PEER_IS_GONE = 99      # exit status of a rank whose peer ended; the peer's own tells why
COLLECTIVE = -1        # tag of everything that is no message
BARRIER = -2           # tag of what ranks tell each other at a barrier that nobody waits in


class PipedRequest:
    """A message on its way; one that is sent has left at once."""

    def __init__(self, comm: PipedComm | None = None, buffer: Any = None, tag: int = 0):
        self._comm, self._buffer, self._tag = comm, buffer, tag
        self.is_done = comm is None

    def test(self, waits: bool) -> bool:
        if not self.is_done:
            content = self._comm.receive(self._tag, waits)
            if content is None:
                return False
            into = np.frombuffer(self._buffer, np.uint8)
            if len(content) > len(into):
                raise RuntimeError(f"a message of {len(content)} bytes is truncated to {len(into)}")
            into[:len(content)] = np.frombuffer(content, np.uint8)
            self.is_done = True
        return True

    @staticmethod
    def Testall(requests: list[PipedRequest]) -> bool:
        return all([request.test(waits=False) for request in requests])

    @staticmethod
    def Testsome(requests: list[PipedRequest]) -> list[int]:
        return [place for place, request in enumerate(requests) if request.test(waits=False)]

    def Test(self) -> bool:
        return self.test(waits=False)

    @staticmethod
    def Waitall(requests: list[PipedRequest]) -> None:
        for request in requests:
            request.test(waits=True)


class PipedComm:
    """One of two ranks; every method is mpi4py's of that name, for what hpcgnn passes to it.

    Parameters
    ----------
    pipe : Connection      to the other rank
    """

    size = 2

    def __init__(self, rank: int, pipe: Connection):
        self.rank, self._pipe = rank, pipe
        self._name: tuple[int, ...] = ()      # of this communicator: which duplicate of which
        self._num_duplicates = 0
        self._waiting: dict[tuple[tuple[int, ...], int], deque] = {}
        self._leaving: queue.SimpleQueue = queue.SimpleQueue()
        # Both ranks may send more than a pipe holds before either reads.
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def receive(self, tag: int, waits: bool) -> Any:
        """The next message with a tag; None where none has come and `waits` is off."""
        arrived = self._waiting.setdefault((self._name, tag), deque())
        try:
            while not arrived and (waits or self._pipe.poll()):
                found, content = self._pipe.recv()
                self._waiting.setdefault(found, deque()).append(content)
        except (EOFError, OSError):
            os._exit(PEER_IS_GONE)
        return arrived.popleft() if arrived else None

    def _send(self, tag: int, content: Any) -> None:
        self._leaving.put(((self._name, tag), content))

    def _write(self) -> None:
        # A peer that has ended takes nothing; who waits for it finds out.
        with contextlib.suppress(OSError):
            while (message := self._leaving.get()) is not None:
                self._pipe.send(message)

    def finish(self) -> None:
        """Return when all that was sent has left."""
        self._leaving.put(None)
        self._writer.join()

    def _swap(self, name: str, own: Any) -> list[Any]:
        self._send(COLLECTIVE, (name, own))
        called, theirs = self.receive(COLLECTIVE, waits=True)
        if called != name:
            raise RuntimeError(f"rank {self.rank} is in {name}, its peer in {called}")
        return [own, theirs] if self.rank == 0 else [theirs, own]

    def Abort(self, code: int) -> None:
        self.finish()
        sys.stderr.flush()
        os._exit(code)

    def Split(self, color: int = 0, key: int = 0) -> PipedComm:
        return self      # of one machine

    def Split_type(self, kind: int, key: int = 0) -> PipedComm:
        return self

    def Dup(self) -> PipedComm:
        """A communicator over the same pipe; one thread at a time may use the two."""
        self._num_duplicates += 1
        double = copy.copy(self)
        double._name, double._num_duplicates = (*self._name, self._num_duplicates), 0
        return double

    def Free(self) -> None:
        return

    def Barrier(self) -> None:
        self._swap("Barrier", None)

    def Ibarrier(self) -> PipedRequest:
        self._send(BARRIER, b"")
        return PipedRequest(self, bytearray(), BARRIER)

    def allgather(self, own: Any) -> list[Any]:
        return self._swap("allgather", own)

    def gather(self, own: Any, root: int = 0) -> list[Any] | None:
        everyone = self._swap("gather", own)
        return everyone if self.rank == root else None

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        return self._swap("bcast", value if self.rank == root else None)[root]

    def scatter(self, values: list | None = None, root: int = 0) -> Any:
        return self._swap("scatter", values if self.rank == root else None)[root][self.rank]

    def alltoall(self, values: list) -> list[Any]:
        return [values_of[self.rank] for values_of in self._swap("alltoall", list(values))]

    def allreduce(self, own: Any, op: Any = None) -> Any:
        return _reduced(self._swap("allreduce", own), op)

    def exscan(self, own: Any, op: Any = None) -> Any:
        before = self._swap("exscan", own)[0]
        return before if self.rank else None

    def Exscan(self, send: Any, receive: Any, op: Any = None) -> None:
        before = self._swap("Exscan", np.array(_array(send)))[0]
        if self.rank:
            _array(receive)[...] = before

    def Allreduce(self, send: Any, receive: Any, op: Any = None) -> None:
        into = _array(receive)
        own = into if not isinstance(send, (np.ndarray, list)) else _array(send)
        into[...] = _reduced([np.array(part) for part in self._swap("Allreduce", np.array(own))], op)

    def Reduce(self, send: Any, receive: Any, op: Any = None, root: int = 0) -> None:
        is_in_place = not isinstance(send, (np.ndarray, list))
        parts = self._swap("Reduce", np.array(_array(receive if is_in_place else send)))
        if self.rank == root:
            _array(receive)[...] = _reduced(parts, op)

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        _array(buffer)[...] = self._swap("Bcast", np.array(_array(buffer)))[root]

    def Allgather(self, send: Any, receive: Any) -> None:
        _array(receive)[...] = np.concatenate(self._swap("Allgather", np.array(_array(send))))

    def Alltoall(self, send: Any, receive: Any) -> None:
        shares = [np.array_split(part.reshape(-1), self.size)[self.rank]
                  for part in self._swap("Alltoall", np.array(_array(send)))]
        into = _array(receive)
        into[...] = np.concatenate(shares).reshape(into.shape)

    def Gatherv(self, send: list, receive: list | None, root: int = 0) -> None:
        everyone = self._swap("Gatherv", np.array(send[0]))
        if self.rank == root:
            receive[0][...] = np.concatenate(everyone)

    def Alltoallv(self, send: list, receive: list) -> None:
        (out, *places), (into, *holes) = send, receive
        parts = self._swap("Alltoallv", [np.array(part) for part in _cut(out, places[0])])
        _put(_cut(into, holes[0]), [part[self.rank] for part in parts])

    def Allgatherv(self, send: list, receive: list) -> None:
        into, *holes = receive
        _put(_cut(into, holes[0]), self._swap("Allgatherv", np.array(send[0])))

    def Isend(self, message: list, destination: int, tag: int = 0) -> PipedRequest:
        self._send(tag, bytes(memoryview(message[0])))
        return PipedRequest()

    def Irecv(self, message: list, source: int, tag: int = 0) -> PipedRequest:
        return PipedRequest(self, memoryview(message[0]), tag)


class PipedMPI:
    """mpi4py.MPI with COMM_WORLD and requests of this module; all else is mpi4py's."""

    def __init__(self, comm: PipedComm, real: Any):
        self.COMM_WORLD, self.Request, self.REQUEST_NULL, self._real = comm, PipedRequest, None, real

    def Query_thread(self) -> int:
        return self._real.THREAD_SERIALIZED

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def become_rank(rank: int, pipe: Connection) -> PipedComm:
    """Give every module of hpcgnn that is imported, or will be, this communicator in place of MPI's."""
    from mpi4py import MPI

    comm = PipedComm(rank, pipe)
    piped = PipedMPI(comm, MPI)
    for name, module in list(sys.modules.items()):
        if name.startswith("hpcgnn.") and getattr(module, "MPI", None) is MPI:
            module.MPI = piped
    return comm


def _array(buffer: Any) -> np.ndarray:
    return np.asarray(buffer[0] if isinstance(buffer, (list, tuple)) else buffer)


def _cut(buffer: Any, counts: Any) -> list[np.ndarray]:
    """Views of a buffer: of counts, or of (counts, first bytes)."""
    array = np.asarray(buffer)
    if isinstance(counts, tuple):
        return [array[first:first + count] for count, first in zip(*counts, strict=True)]
    ends = np.cumsum(counts)
    return [array[end - count:end] for count, end in zip(counts, ends, strict=True)]


def _put(holes: list[np.ndarray], parts: list[np.ndarray]) -> None:
    for hole, part in zip(holes, parts, strict=True):
        if len(part) > len(hole):
            raise RuntimeError(f"a message of {len(part)} is truncated to {len(hole)}")
        hole[:len(part)] = part


def _reduced(parts: list, op: Any) -> Any:
    from mpi4py import MPI

    if op is None or op == MPI.SUM:
        return parts[0] + parts[1]
    if op in (MPI.MAX, MPI.LOR):
        return np.maximum(*parts) if isinstance(parts[0], np.ndarray) else max(parts)
    if op in (MPI.MIN, MPI.LAND):
        return np.minimum(*parts) if isinstance(parts[0], np.ndarray) else min(parts)
    if op == MPI.BXOR:
        return np.bitwise_xor(*parts)
    if op == MPI.BOR:
        return parts[0] | parts[1]
    raise NotImplementedError(str(op))
