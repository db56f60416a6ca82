"""ExchangePlan: which rows go to whom and in which round, fixed by the partition. Bits and bytes are not known here."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
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


Rounds = tuple[tuple[int, int], ...]     # (destination, source) of each, as places in a list of peers


@dataclass(frozen=True)
class ExchangePlan:
    """The two row lists that a rank shares with each peer.

    Forward, boundary rows leave and halo rows arrive; backward, gradients of halo rows leave and are added to
    boundary rows. Both sides list a message's rows in ascending global id, so nothing is negotiated. A rank's peers are
    those that it shares rows with, and itself; no other rank is known here, so that nothing grows with their number.

    Attributes
    ----------
    rank, num_ranks : int
    num_inner, num_halo : int
    peers : tuple of int                      ascending ranks; two ranks are peers of each other, or not
    boundary, halo : tuple of RowList         one a peer; the own entry is empty
    rounds : tuple of (destination, source)   places in `peers`, see `ring_rounds`
    """

    rank: int
    num_ranks: int
    num_inner: int
    num_halo: int
    peers: tuple[int, ...]
    boundary: tuple[RowList, ...]
    halo: tuple[RowList, ...]
    rounds: Rounds

    @property
    def own_place(self) -> int:
        """Return the place of this rank in `peers`."""
        return bisect_left(self.peers, self.rank)

    @property
    def is_alone(self) -> bool:
        """Tell whether this rank neither sends nor receives a row."""
        return not any(map(len, self.boundary + self.halo))

    @property
    def digest(self) -> str:
        """32 hex digits that tell these lists from those of another rank, partition or order of rows."""
        head = [self.rank, self.num_ranks, self.num_inner, self.num_halo, *self.peers]
        digest = hashlib.blake2b(np.array(head), digest_size=16)
        for rows in self.boundary + self.halo:
            for array in (np.array([len(rows)]), rows.index, rows.node_id):
                digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    @classmethod
    def build(cls, part: Partition) -> ExchangePlan:
        """Derive the plan of the rank that owns `part`."""
        shares = (np.diff(part.boundary_offset) > 0) | (np.diff(part.halo_offset) > 0)
        shares[part.part] = True
        peers = tuple(np.flatnonzero(shares).tolist())
        boundary, halo = [], []
        for peer in peers:
            sent = part.boundary_index[part.boundary_offset[peer]:part.boundary_offset[peer + 1]]
            boundary.append(RowList(np.ascontiguousarray(sent, np.int32), part.inner_id[sent],
                                    np.arange(len(sent), dtype=np.int32)))
            low, high = int(part.halo_offset[peer]), int(part.halo_offset[peer + 1])
            rows = np.arange(low, high, dtype=np.int32)
            halo.append(RowList(rows, np.ascontiguousarray(part.halo_id[low:high], np.int64), rows - rows[:1]))
        return cls(part.part, part.num_parts, part.num_inner, part.num_halo, peers, tuple(boundary), tuple(halo),
                   ring_rounds(part.part, part.num_parts, peers))

    def restricted(self, sent: tuple[np.ndarray, ...], received: np.ndarray) -> ExchangePlan:
        """Return the plan in which fewer rows travel.

        sent : one bool a row of each boundary list, received : (num_halo,) bool; what one rank sends the other receives
        """
        boundary = tuple(rows.where(is_kept) for rows, is_kept in zip(self.boundary, sent, strict=True))
        return replace(self, boundary=boundary, halo=tuple(rows.where(received[rows.index]) for rows in self.halo))


def ring_rounds(rank: int, num_ranks: int, peers: Sequence[int]) -> Rounds:
    """List the rounds of a ring in which a rank meets a peer: round i sends to rank + i and receives from rank - i, for
    i = 1 .. num_ranks - 1. A round that meets one peer has the rank itself on the other side, to which nothing goes.

    Parameters
    ----------
    peers : ascending ranks, this one among them

    Returns
    -------
    rounds : tuple of (destination, source)      places in `peers`, in the order of the rounds
    """
    place = {peer: number for number, peer in enumerate(peers)}
    number = {(peer - rank) % num_ranks for peer in peers} | {(rank - peer) % num_ranks for peer in peers}
    own = place[rank]
    return tuple((place.get((rank + i) % num_ranks, own), place.get((rank - i) % num_ranks, own))
                 for i in sorted(number - {0}))
