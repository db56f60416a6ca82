"""ExchangePlan: which rows go to whom and in which round, fixed by the partition. Bits and bytes are not known here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda.resident import make_resident
from hpcgnn.partition.partition import Partition


@dataclass(frozen=True)
class RowList:
    """Rows of one message in the order of the wire.

    Attributes
    ----------
    index : (n,) int32         inner or halo rows, each counted from 0
    node_id : (n,) int64       their global ids, ascending
    position : (n,) int32      their places in the pair's whole list; this list may hold only some of its rows
    """

    index: np.ndarray
    node_id: np.ndarray
    position: np.ndarray

    def __post_init__(self):
        make_resident(self, "index", "node_id")

    def __len__(self) -> int:
        return len(self.index)

    def where(self, is_kept: np.ndarray) -> RowList:
        """Return the rows of a mask."""
        return RowList(self.index[is_kept], self.node_id[is_kept], self.position[is_kept])

    def at(self, position: np.ndarray) -> RowList:
        """Return the rows at these places of a whole list, (n,) int32.

        Raises
        ------
        KernelError      a place outside of it
        """
        if len(position) and not 0 <= position.min() <= position.max() < len(self):
            raise KernelError(f"rows {position.min()} to {position.max()} were asked of a list of {len(self)}")
        return RowList(self.index[position], self.node_id[position], position)


NO_ROWS = RowList(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32))


@dataclass(frozen=True)
class ExchangePlan:
    """The two row lists that a rank shares with each peer.

    Forward, boundary rows leave and halo rows arrive; backward, gradients of halo rows leave and are added to
    boundary rows. Both sides list a message's rows in ascending global id, so nothing is negotiated.

    Attributes
    ----------
    rank, num_ranks : int
    num_inner, num_halo : int
    boundary, halo : tuple of RowList, one a rank; the own entry is empty
    rounds : tuple of (destination, source), one a round of the ring
    """

    rank: int
    num_ranks: int
    num_inner: int
    num_halo: int
    boundary: tuple[RowList, ...]
    halo: tuple[RowList, ...]
    rounds: tuple[tuple[int, int], ...]

    @property
    def is_alone(self) -> bool:
        """Tell whether this rank neither sends nor receives a row."""
        return not any(map(len, self.boundary + self.halo))

    @property
    def digest(self) -> str:
        """32 hex digits that tell these lists from those of another rank, partition or order of rows."""
        digest = hashlib.blake2b(np.array([self.rank, self.num_ranks, self.num_inner, self.num_halo]), digest_size=16)
        for rows in self.boundary + self.halo:
            for array in (np.array([len(rows)]), rows.index, rows.node_id):
                digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    @classmethod
    def build(cls, part: Partition) -> ExchangePlan:
        """Derive the plan of the rank that owns `part`."""
        boundary, halo = [], []
        for peer in range(part.num_parts):
            sent = part.boundary_index[part.boundary_offset[peer]:part.boundary_offset[peer + 1]]
            boundary.append(RowList(np.ascontiguousarray(sent, np.int32), part.inner_id[sent],
                                    np.arange(len(sent), dtype=np.int32)))
            low, high = int(part.halo_offset[peer]), int(part.halo_offset[peer + 1])
            rows = np.arange(low, high, dtype=np.int32)
            halo.append(RowList(rows, np.ascontiguousarray(part.halo_id[low:high], np.int64), rows - rows[:1]))
        return cls(part.part, part.num_parts, part.num_inner, part.num_halo, tuple(boundary), tuple(halo),
                   ring_rounds(part.part, part.num_parts))

    def restricted(self, sent: tuple[np.ndarray, ...], received: np.ndarray) -> ExchangePlan:
        """Return the plan in which fewer rows travel.

        sent : one bool a row of each boundary list, received : (num_halo,) bool; what one rank sends the other receives
        """
        boundary = tuple(rows.where(is_kept) for rows, is_kept in zip(self.boundary, sent, strict=True))
        return replace(self, boundary=boundary, halo=tuple(rows.where(received[rows.index]) for rows in self.halo))


def ring_rounds(rank: int, num_ranks: int) -> tuple[tuple[int, int], ...]:
    """List the rounds: round i sends to rank + i and receives from rank - i, for i = 1 .. num_ranks - 1."""
    return tuple(((rank + i) % num_ranks, (rank - i) % num_ranks) for i in range(1, num_ranks))
