"""StandInComm: a communicator of one process that pretends to be a rank among many, to measure a rank's own work."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.run.launch import MPI


class StandInComm:
    """Counts and discards what a rank sends, and receives zeros.

    Collectives leave this rank's floating-point numbers in place; integers, with which ranks check each other, become
    0.

    num_messages, message_bytes : int          posted so far, both ways
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.num_messages = self.message_bytes = 0

    def Isend(self, message: list, destination: int, tag: int = 0) -> MPI.Request:
        self._count_message(message)
        return MPI.REQUEST_NULL

    def Irecv(self, message: list, source: int, tag: int = 0) -> MPI.Request:
        self._count_message(message)
        message[0][...] = 0
        return MPI.REQUEST_NULL

    def Allreduce(self, send: Any, receive: np.ndarray, operation: MPI.Op = MPI.SUM) -> None:
        if receive.dtype.kind in "ui":
            receive[...] = 0

    def Exscan(self, send: np.ndarray, receive: np.ndarray, operation: MPI.Op = MPI.SUM) -> None:
        receive[...] = 0

    def Barrier(self) -> None:
        pass

    def _count_message(self, message: list) -> None:
        self.num_messages += 1
        self.message_bytes += len(message[0])
