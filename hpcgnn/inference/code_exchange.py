"""CodeExchange: codes of boundary rows to the ranks that need them, packed at their own width and exact.

One message a peer, its rows as the ExchangePlan lists them and nothing else: both sides know width and size.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from hpcgnn.exchange.arena import MessageArena
from hpcgnn.exchange.plan import ExchangePlan, RowList
from hpcgnn.exchange.ring import MAX_TAG, Transfer
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.inference.code_packing import pack_codes, packed_bytes, unpack_codes
from hpcgnn.ops.integer_layers import MappedRows


class CodeExchange:
    """Exchanges of one rank, one at a time.

    Parameters
    ----------
    comm : MPI communicator with one rank a part
    plan : ExchangePlan

    Attributes
    ----------
    sent_bytes : int             handed to MPI by this rank so far
    float_bytes : int            what the same rows would take in float32
    """

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan):
        self._comm, self._plan = comm, plan
        self._arena, self._traffic = MessageArena(), Traffic()
        self._num_exchanges = 0
        self.sent_bytes = self.float_bytes = 0

    @property
    def num_halo(self) -> int:
        return self._plan.num_halo

    @property
    def boundary(self) -> tuple[RowList, ...]:
        """Return the rows that go to each peer."""
        return self._plan.boundary

    @property
    def halo(self) -> tuple[RowList, ...]:
        """Return the halo rows that come from each peer, which are neighbors."""
        return self._plan.halo

    @property
    def blocked_seconds(self) -> float:
        """Return the seconds that this rank has waited for messages."""
        return self._traffic.blocked_seconds

    def start(self, codes: np.ndarray | MappedRows, bit_width: int) -> CodeArrival:
        """Collective: have the codes of halo rows come.

        Parameters
        ----------
        codes : (at least num_inner, dim) int8, of magnitude below 2**(bit_width - 1); rows of MappedRows whose bytes
            hold codes of that width and nothing else are sent as they lie
        """
        dim, plan = codes.shape[1], self._plan
        sizes = [[packed_bytes(len(rows) * dim, bit_width) for rows in lists] for lists in (plan.boundary, plan.halo)]
        send, receive = self._arena.slices(*sizes)
        is_whole = isinstance(codes, MappedRows) and codes.fills(bit_width)
        for rows, message in zip(plan.boundary, send, strict=True):
            if len(rows) and is_whole:
                np.take(codes.table, rows.index, axis=0, out=message.reshape(len(rows), -1))
            elif len(rows):
                pack_codes(codes[rows.index], bit_width, message)
        return CodeArrival(plan, self.transfer(send, receive, dim), receive, bit_width, is_whole)

    def transfer(self, send: list[np.ndarray], receive: list[np.ndarray], dim: int) -> Transfer:
        """Collective: begin an exchange of messages that are there; boundary rows have `dim` codes."""
        plan = self._plan
        self.sent_bytes += sum(map(len, send))
        self.float_bytes += 4 * dim * sum(map(len, plan.boundary))
        self._num_exchanges += 1
        return Transfer(self._comm, plan.peers, plan.rounds, send, receive, self._num_exchanges % MAX_TAG,
                        traffic=self._traffic)


class CodeArrival:
    """Codes on their way."""

    def __init__(self, plan: ExchangePlan, transfer: Transfer, receive: list[np.ndarray], bit_width: int,
                 is_whole: bool):
        self._plan, self._transfer, self._receive = plan, transfer, receive
        self._bit_width, self._is_whole = bit_width, is_whole

    def poll(self) -> bool:
        """Let MPI make progress; whether all has arrived."""
        return self._transfer.poll()

    def finish(self, halo: np.ndarray) -> None:
        """Wait, and write the codes of halo rows, (num_halo, dim) int8."""
        self._transfer.wait()
        for rows, message in zip(self._plan.halo, self._receive, strict=True):
            if len(rows):
                # A peer's halo rows are neighbors, in the order of its message.
                unpack_codes(message, self._bit_width, halo[rows.index[0]:rows.index[-1] + 1])

    def finish_into(self, mapped: MappedRows, first: int) -> None:
        """Wait, and write the codes of halo rows to the rows from `first` on, of the form that was sent."""
        if not self._is_whole:
            halo = np.empty((self._plan.num_halo, mapped.shape[1]), np.int8)
            self.finish(halo)
            mapped.put(first, halo)
            return
        self._transfer.wait()
        for rows, message in zip(self._plan.halo, self._receive, strict=True):
            if len(rows):
                mapped.table[first + rows.index[0]:first + rows.index[-1] + 1] = message.reshape(len(rows), -1)
