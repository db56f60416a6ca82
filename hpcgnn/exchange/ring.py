"""Moves packed messages between ranks: the ring of P-1 point-to-point rounds, or one Alltoallv of the same bytes.

Sizes are known to both sides; nothing here knows what the bytes mean.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import KernelError

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


def exchange_ring(comm: MPI.Comm, rounds: tuple[tuple[int, int], ...], send: list[np.ndarray],
                  receive: list[np.ndarray], tag: int) -> int:
    """Collective: in round i send to rank + i while receiving from rank - i.

    Parameters
    ----------
    send, receive : list of uint8 arrays, one a rank; empty ones cost no message
    tag : int        equal on all ranks for one exchange

    Returns
    -------
    int              bytes handed to MPI by this rank
    """
    sent_bytes = 0
    for destination, source in rounds:
        requests = [comm.Irecv([piece, MPI.BYTE], source, tag) for piece in _pieces(receive[source])]
        for piece in _pieces(send[destination]):
            requests.append(comm.Isend([piece, MPI.BYTE], destination, tag))
            sent_bytes += len(piece)
        MPI.Request.Waitall(requests)
    return sent_bytes


def exchange_alltoallv(comm: MPI.Comm, rounds: tuple[tuple[int, int], ...], send: list[np.ndarray],
                       receive: list[np.ndarray], tag: int) -> int:
    """Collective: the same messages as `exchange_ring` in one MPI_Alltoallv; `rounds` and `tag` don't matter.

    Raises
    ------
    KernelError      a rank's messages pass 2 GiB, the limit of Alltoallv's 32-bit counts
    """
    del rounds, tag
    if max(_extent(send), _extent(receive)) > np.iinfo(np.int32).max:
        raise KernelError(f"an exchange of {_extent(send)} bytes passes Alltoallv's limit of 2 GiB a rank; "
                          "use --exchange ring")
    comm.Alltoallv(_vector(send), _vector(receive))
    return sum(map(len, send))


def _extent(messages: list[np.ndarray]) -> int:
    return sum(_padded(len(message)) for message in messages)


def _vector(messages: list[np.ndarray]) -> list:
    """MPI's (buffer, (counts, displacements), type) of views cut from one arena buffer."""
    counts = [len(message) for message in messages]
    displacements = starts(counts)
    whole = messages[0].base[:_extent(messages)]
    return [whole, (counts, displacements), MPI.BYTE]


EXCHANGES = {"ring": exchange_ring, "alltoallv": exchange_alltoallv}
