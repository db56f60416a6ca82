"""Check before the first row travels that the parts of all ranks fit together. Nothing is read or repaired here."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import CollectiveError
from hpcgnn.partition.partition import Partition
from hpcgnn.partition.peer_lists import needed_digests, sent_digests


def check_peers(comm: MPI.Comm, part: Partition, run_id: str) -> None:
    """Collective: check that each rank needs of every other the rows that that one sends it, in the same order.

    Lists that differ would hang an exchange or mix rows in silence. Each pair of ranks compares 8 bytes.

    Parameters
    ----------
    run_id : str              of the shards that this rank read; ranks that read two generations do not agree

    Raises
    ------
    CollectiveError           on all ranks, naming the first pair that disagrees
    """
    needed = needed_digests(part, run_id)
    promised = comm.alltoall(sent_digests(part, run_id).tolist())
    wrong = np.flatnonzero(needed != promised)
    first = min(comm.allgather((comm.rank, int(wrong[0])) if len(wrong) else (comm.size, 0)))
    if first[0] < comm.size:
        raise CollectiveError(f"part {first[0]} needs other rows of part {first[1]} than that part sends it; the "
                              "shards are of two runs or a faulty program wrote them, run hpcgnn preprocess again")
