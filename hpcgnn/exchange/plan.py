"""ExchangePlan: which rows go to whom and in which round, fixed by the partition. Bits and bytes are not known here.

Check before the first row travels that the parts of all ranks fit together.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import CollectiveError, KernelError
from hpcgnn.ops.cuda.resident import make_resident
from hpcgnn.partition.partition import Partition, needed_digests, sent_digests


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


def check_peers(comm: MPI.Comm, part: Partition, run_id: str) -> None:
    """Collective: check that each rank needs of every other the rows that that one sends it, in the same order.

    Lists that differ would hang an exchange or mix rows in silence. Every list has 64 bits that depend on its rows and
    on both ranks; the sum over all lists that are sent, less that over all that are needed, is 0 where they agree, and
    else by a chance of 2^-64. So a rank looks at its own lists alone. Only where the sum is not 0 does each pair of
    ranks compare 8 bytes, which tells the pair.

    Parameters
    ----------
    run_id : str              of the shards that this rank read; ranks that read two generations do not agree

    Raises
    ------
    CollectiveError           on all ranks, naming the first pair that disagrees
    """
    total = np.array([_sum_of_lists(comm, part, run_id)], np.uint64)
    comm.Allreduce(MPI.IN_PLACE, total, MPI.SUM)
    if total[0]:
        _refuse(comm, part, run_id)


def _sum_of_lists(comm: MPI.Comm, part: Partition, run_id: str) -> np.uint64:
    """Return this rank's share of the sum: lists that it sends, less those that it needs, modulo 2^64.

    A list without rows is not told of; that the next rank of a ring reads the same run is told like a list.
    """
    sends = np.flatnonzero(np.diff(part.boundary_offset))
    needs = np.flatnonzero(np.diff(part.halo_offset))
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = [*zip(sends, sent_digests(part, run_id, sends), strict=True), (after, run_id)]
    needed = [*zip(needs, needed_digests(part, run_id, needs), strict=True), (before, run_id)]
    with np.errstate(over="ignore"):
        return (_sum((comm.rank, peer, found) for peer, found in sent)
                - _sum((peer, comm.rank, found) for peer, found in needed))


def _sum(lists: Iterable[tuple[int, int, int | str]]) -> np.uint64:
    """Add 64 bits of each (sender, receiver, digest)."""
    bits = [hashlib.blake2b("{} {} {}".format(*one).encode(), digest_size=8).digest() for one in lists]
    return np.frombuffer(b"".join(bits), np.uint64).sum(dtype=np.uint64)


def _refuse(comm: MPI.Comm, part: Partition, run_id: str) -> None:
    """Collective: tell the first pair that disagrees."""
    everyone = range(comm.size)
    needed = needed_digests(part, run_id, everyone)
    promised = comm.alltoall(sent_digests(part, run_id, everyone).tolist())
    wrong = np.flatnonzero(needed != promised)
    first = min(comm.allgather((comm.rank, int(wrong[0])) if len(wrong) else (comm.size, 0)))
    raise CollectiveError(f"part {first[0]} needs other rows of part {first[1]} than that part sends it; the "
                          "shards are of two runs or a faulty program wrote them, run hpcgnn preprocess again")
