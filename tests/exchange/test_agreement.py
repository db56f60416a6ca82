"""Ranks whose parts do not fit each other find out before the first row travels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI
from reference_partition import random_dataset

from hpcgnn.errors import CollectiveError
from hpcgnn.exchange.plan import check_peers
from hpcgnn.partition.build import build_partition

RANKS = [1, 2, 3, 4]


def own_part(comm):
    dataset = random_dataset(60, 400, seed=1, directed=True)
    owner = np.random.default_rng(0).integers(0, comm.size, 60).astype(np.int32)
    return build_partition(dataset, owner, comm.rank, comm.size)


@pytest.mark.parallel(RANKS)
def test_parts_of_one_graph_agree():
    check_peers(MPI.COMM_WORLD, own_part(MPI.COMM_WORLD), "a")


def swapped(array):
    array = array.copy()
    array[[0, 1]] = array[[1, 0]]
    return array


CHANGES = {
    "other ids": lambda part: replace(part, halo_id=part.halo_id + 1),
    "another order": lambda part: replace(part, halo_id=swapped(part.halo_id)),
    "another in-degree": lambda part: replace(part, in_degree=part.in_degree + 1),
    "other importance": lambda part: replace(part, importance=part.importance / 2),
    "fewer rows": lambda part: replace(part, halo_id=part.halo_id[:-1],
                                       halo_offset=np.minimum(part.halo_offset, part.num_halo - 1)),
}


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("how", CHANGES)
def test_a_list_that_its_peer_does_not_hold_is_refused_on_all_ranks(how):
    comm = MPI.COMM_WORLD
    part = own_part(comm)
    if comm.rank == comm.size - 1:
        part = CHANGES[how](part)
    with pytest.raises(CollectiveError, match=r"part \d needs of part \d differ from the rows that part \d sends"):
        check_peers(comm, part, "a")


@pytest.mark.parallel([2, 3])
def test_ranks_that_read_two_generations_of_shards_are_refused():
    comm = MPI.COMM_WORLD
    with pytest.raises(CollectiveError, match="the shards are of two runs"):
        check_peers(comm, own_part(comm), "new" if comm.rank else "old")
