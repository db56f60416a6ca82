"""ExchangePlan: which rows go to which rank, in which order and round.

The plan follows from the partition alone. For each peer a rank holds two lists, sorted by global id on both sides:
boundary rows, which it sends, and halo rows, which it receives. Example: rank 0 owns nodes 0 and 1, rank 1 owns 2, and
edges run 1 -> 2 and 2 -> 0. Rank 0 has boundary [1] and halo [2] with peer 1; rank 1 has boundary [2] and halo [1].
Since the order is the same on both sides, a message carries rows without their ids. In a backward pass the lists swap
roles.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import CollectiveError, KernelError
from hpcgnn.ops.resident import make_resident
from hpcgnn.partition.partition import Partition, needed_digests, sent_digests


@dataclass(frozen=True)
class RowList:
    """Rows of one message in wire order."""

    index: np.ndarray     # (n,) int32, inner or halo rows, each counted from 0
    node_id: np.ndarray   # (n,) int64, global ids, ascending
    position: np.ndarray  # (n,) int32, indices of these rows in the pair's whole list

    def __post_init__(self):
        make_resident(self, "index", "node_id")

    def __len__(self) -> int:
        return len(self.index)

    def where(self, is_kept: np.ndarray) -> RowList:
        """Return the rows of a mask."""
        return RowList(self.index[is_kept], self.node_id[is_kept], self.position[is_kept])

    def at(self, position: np.ndarray) -> RowList:
        """Return the rows at positions (n,) int32 of a whole list; KernelError if a position is outside the list."""
        if len(position) and not 0 <= position.min() <= position.max() < len(self):
            raise KernelError(f"rows {position.min()} to {position.max()} were asked of a list of {len(self)}")
        return RowList(self.index[position], self.node_id[position], position)


NO_ROWS = RowList(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32))


Rounds = tuple[tuple[int, int], ...]     # (destination, source) of each, as indices into a list of peers
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ExchangePlan:
    """The two row lists that a rank shares with each peer.

    Peers are the ranks that share rows with this one, and itself, so memory does not grow with the number of ranks.
    """

    rank: int
    num_ranks: int
    num_inner: int
    num_halo: int
    peers: tuple[int, ...]  # ascending; being peers is mutual
    # one per peer; this rank's own entry is empty
    boundary: tuple[RowList, ...]
    halo: tuple[RowList, ...]
    rounds: Rounds          # (destination, source), indices into `peers`, see `ring_rounds`

    @property
    def own_place(self) -> int:
        return bisect_left(self.peers, self.rank)

    @property
    def halo_spans(self) -> Spans:
        """(start, stop) of the halo rows of each peer, where they lie peer by peer."""
        ends = np.cumsum([len(rows) for rows in self.halo]).tolist()
        return tuple(zip([0, *ends[:-1]], ends, strict=True))

    @property
    def is_alone(self) -> bool:
        return not any(map(len, self.boundary + self.halo))

    @property
    def digest(self) -> str:
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
        """The plan with the rows in `sent`, bool per peer, and `received`, (num_halo,) bool; both sides must agree."""
        boundary = tuple(rows.where(is_kept) for rows, is_kept in zip(self.boundary, sent, strict=True))
        return replace(self, boundary=boundary, halo=tuple(rows.where(received[rows.index]) for rows in self.halo))

    def of_nodes(self, nodes: range) -> ExchangePlan:
        """The plan with the rows of nodes whose global ids are in a range of step 1."""
        boundary, halo = (tuple(listed.where((listed.node_id >= nodes.start) & (listed.node_id < nodes.stop))
                                for listed in lists) for lists in (self.boundary, self.halo))
        return replace(self, boundary=boundary, halo=halo)


def ring_rounds(rank: int, num_ranks: int, peers: Sequence[int]) -> Rounds:
    """List the rounds of the ring in which a rank meets a peer, as (destination, source): indices into `peers`.

    Round i sends to rank + i and receives from rank - i, for i = 1 .. num_ranks - 1. If one side is not a peer, the
    rank itself takes its place, with an empty message. Rank 1 of 4 with peers [0, 1, 3] sends to nobody in round 1 and
    receives from 0; in round 2 it exchanges with 3; in round 3 it sends to 0.
    """
    place = {peer: number for number, peer in enumerate(peers)}
    number = {(peer - rank) % num_ranks for peer in peers} | {(rank - peer) % num_ranks for peer in peers}
    own = place[rank]
    return tuple((place.get((rank + i) % num_ranks, own), place.get((rank - i) % num_ranks, own))
                 for i in sorted(number - {0}))


def check_peers(comm: MPI.Comm, part: Partition, run_id: str) -> None:
    """Collective: check that each rank needs exactly the rows that its peers send, in the same order.

    Lists that differ would hang an exchange or mix up rows. Each list has a 64-bit digest. Ranks sum the digests of all
    sent lists minus the digests of all needed lists; the total is 0 if they agree, and otherwise only with probability
    2^-64. If it is not 0, all pairs compare digests to name the pair. Digests contain the run_id of the shards, so two
    generations do not agree. Raises CollectiveError on all ranks, naming the first pair that disagrees.
    """
    total = np.array([_sum_of_lists(comm, part, run_id)], np.uint64)
    comm.Allreduce(MPI.IN_PLACE, total, MPI.SUM)
    if total[0]:
        _refuse(comm, part, run_id)


def _sum_of_lists(comm: MPI.Comm, part: Partition, run_id: str) -> np.uint64:
    # Empty lists are left out. One more item compares the run id with the next rank of the ring.
    sends = np.flatnonzero(np.diff(part.boundary_offset))
    needs = np.flatnonzero(np.diff(part.halo_offset))
    sent: list[tuple]
    needed: list[tuple]
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = [*zip(sends, sent_digests(part, run_id, sends), strict=True), (after, run_id)]
    needed = [*zip(needs, needed_digests(part, run_id, needs), strict=True), (before, run_id)]
    with np.errstate(over="ignore"):
        return (_sum((comm.rank, peer, found) for peer, found in sent)
                - _sum((peer, comm.rank, found) for peer, found in needed))


def _sum(lists: Iterable[tuple[int, int, int | str]]) -> np.uint64:
    bits = [hashlib.blake2b("{} {} {}".format(*one).encode(), digest_size=8).digest() for one in lists]
    return np.frombuffer(b"".join(bits), np.uint64).sum(dtype=np.uint64)


def _refuse(comm: MPI.Comm, part: Partition, run_id: str) -> None:
    everyone = range(comm.size)
    needed = needed_digests(part, run_id, everyone)
    promised = comm.alltoall(sent_digests(part, run_id, everyone).tolist())
    wrong = np.flatnonzero(needed != promised)
    first = min(comm.allgather((comm.rank, int(wrong[0])) if len(wrong) else (comm.size, 0)))
    raise CollectiveError(f"the rows that part {first[0]} needs of part {first[1]} differ from the rows that part "
                          f"{first[1]} sends to it; the shards are of two runs or a faulty program wrote them, run "
                          "hpcgnn preprocess again")
