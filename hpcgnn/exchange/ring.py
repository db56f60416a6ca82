"""Moves packed messages between ranks: the ring of P-1 point-to-point rounds, or one Alltoallv of the same bytes.

Sizes are known to both sides; nothing here knows what the bytes mean.
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.traffic import Traffic

MAX_MESSAGE_BYTES = 1 << 30    # longer messages travel as several, below MPI's 32-bit counts
ALIGNMENT = 64                 # bytes; each message of an arena begins on a cache line


class MessageArena:
    """One send and one receive buffer, grown when a larger exchange comes and reused by all.

    Its content is valid until the next call of `slices`.
    """

    def __init__(self) -> None:
        self._send = np.empty(0, np.uint8)
        self._receive = np.empty(0, np.uint8)

    def slices(self, send_bytes: list[int], receive_bytes: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """A writable uint8 view for each peer's message, to send and to receive."""
        self._send = _grown(self._send, send_bytes)
        self._receive = _grown(self._receive, receive_bytes)
        return _cut(self._send, send_bytes), _cut(self._receive, receive_bytes)

    @property
    def num_bytes(self) -> int:
        """Memory kept."""
        return len(self._send) + len(self._receive)

    @property
    def received(self) -> np.ndarray:
        """The whole receive buffer, in which messages begin at `starts` of their sizes."""
        return self._receive


def starts(sizes: list[int]) -> list[int]:
    """Byte at which each of an exchange's messages begins in its buffer."""
    return np.concatenate([[0], np.cumsum([_padded(size) for size in sizes])[:-1]]).astype(int).tolist()


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _grown(buffer: np.ndarray, sizes: list[int]) -> np.ndarray:
    needed = sum(map(_padded, sizes))
    return buffer if len(buffer) >= needed else np.empty(needed, np.uint8)


def _cut(buffer: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    views, start = [], 0
    for size in sizes:
        views.append(buffer[start:start + size])
        start += _padded(size)
    return views


def _pieces(message: np.ndarray) -> list[np.ndarray]:
    return [message[start:start + MAX_MESSAGE_BYTES] for start in range(0, len(message), MAX_MESSAGE_BYTES)]


class Link:
    """Paces messages as a slower link would: one that carries `bytes_per_second` each way, one exchange after another.

    For experiments; 0 is as fast as MPI goes.
    """

    def __init__(self, bytes_per_second: float = 0.0):
        self._rate, self._is_free_at = bytes_per_second, 0.0

    def reserve(self, num_bytes: int) -> float:
        """The time (perf_counter) at which so many bytes, posted now, will have arrived."""
        now = time.perf_counter()
        if self._rate:
            self._is_free_at = max(now, self._is_free_at) + num_bytes / self._rate
        return max(now, self._is_free_at)


class Transfer:
    """Messages of one exchange on their way. Both sides must post the same exchanges in the same order.

    Parameters
    ----------
    rounds : (destination, source) of each round of the ring; round i is posted when round i - 1 has arrived, since
        one partner at a time congests no link, or all at once with `is_open`, for messages that nobody waits for
    send, receive : list of uint8 arrays, one a rank, left alone until the transfer has arrived; empty ones cost nothing
    tag : int                    equal on all ranks for one exchange
    link : Link or None
    traffic : Traffic or None    counts the seconds

    Attributes
    ----------
    sent_bytes : int             handed to MPI by this rank
    """

    def __init__(self, comm: MPI.Comm, rounds: tuple[tuple[int, int], ...], send: list[np.ndarray],
                 receive: list[np.ndarray], tag: int, link: Link | None = None, traffic: Traffic | None = None,
                 is_open: bool = False):
        self._comm, self._send, self._receive, self._tag = comm, send, receive, tag
        self._rounds, self._requests = deque(rounds), []
        self.sent_bytes = sum(map(len, send))
        self._traffic = traffic or Traffic()
        self._has_arrived = False
        self._posted_at = time.perf_counter()
        self._due = (link or Link()).reserve(max(self.sent_bytes, sum(map(len, receive))))
        while self._rounds and (is_open or not self._requests):
            self._post_round()
        self._traffic.exchange_seconds += time.perf_counter() - self._posted_at

    def poll(self) -> bool:
        """Let MPI make progress, which it does only when it is called; whether all messages have arrived."""
        started = time.perf_counter()
        while not self._has_arrived and MPI.Request.Testall(self._requests):
            if not self._rounds:
                if time.perf_counter() < self._due:
                    break
                self._arrive()
            else:
                self._post_round()
        self._traffic.exchange_seconds += time.perf_counter() - started
        return self._has_arrived

    def wait(self) -> None:
        """Return when all messages have arrived."""
        if self._has_arrived:
            return
        started = time.perf_counter()
        MPI.Request.Waitall(self._requests)
        while self._rounds:
            self._post_round()
            MPI.Request.Waitall(self._requests)
        time.sleep(max(0.0, self._due - time.perf_counter()))
        self._arrive()
        seconds = time.perf_counter() - started
        self._traffic.exchange_seconds += seconds
        self._traffic.blocked_seconds += seconds

    def _post_round(self) -> None:
        destination, source = self._rounds.popleft()
        self._requests = [request for request in self._requests if request != MPI.REQUEST_NULL]
        self._requests += [self._comm.Irecv([piece, MPI.BYTE], source, self._tag)
                           for piece in _pieces(self._receive[source])]
        self._requests += [self._comm.Isend([piece, MPI.BYTE], destination, self._tag)
                           for piece in _pieces(self._send[destination])]

    def _arrive(self) -> None:
        self._has_arrived = True
        self._requests = []
        self._traffic.travel_seconds += time.perf_counter() - self._posted_at


class AlltoallvTransfer(Transfer):
    """The same messages in one MPI_Alltoallv, which has ended when the transfer is made.

    Raises
    ------
    KernelError      a rank's messages pass 2 GiB, the limit of Alltoallv's 32-bit counts
    """

    def _post_round(self) -> None:
        self._rounds.clear()
        started = time.perf_counter()
        send, receive = self._send, self._receive
        if max(_extent(send), _extent(receive)) > np.iinfo(np.int32).max:
            raise KernelError(f"an exchange of {_extent(send)} bytes passes Alltoallv's limit of 2 GiB a rank; "
                              "use --exchange ring")
        self._comm.Alltoallv(_vector(send), _vector(receive))
        self._traffic.blocked_seconds += time.perf_counter() - started


def _first_bytes(messages: list[np.ndarray]) -> list[int]:
    """Where each of an exchange's messages lies in the arena's buffer; one that is left out moves no other."""
    first = messages[0].base.__array_interface__["data"][0]
    return [message.__array_interface__["data"][0] - first if len(message) else 0 for message in messages]


def _extent(messages: list[np.ndarray]) -> int:
    return max(first + len(message) for first, message in zip(_first_bytes(messages), messages, strict=True))


def _vector(messages: list[np.ndarray]) -> list:
    """MPI's (buffer, (counts, displacements), type) of views cut from one arena buffer."""
    return [messages[0].base, ([len(message) for message in messages], _first_bytes(messages)), MPI.BYTE]


EXCHANGES: dict[str, type[Transfer]] = {"ring": Transfer, "alltoallv": AlltoallvTransfer}
