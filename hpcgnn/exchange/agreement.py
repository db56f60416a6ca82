"""Check before the first row travels that the parts of all ranks fit together. Nothing is read or repaired here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import CollectiveError
from hpcgnn.partition.partition import Partition
from hpcgnn.partition.peer_lists import needed_digests, sent_digests


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
