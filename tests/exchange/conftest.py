"""Partitioned graphs of several shapes, with every part known on every rank, and a communicator that counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse
from reference_partition import random_dataset

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.partition.build import build_partition
from hpcgnn.partition.partition import Partition

NUM_NODES = 60


@dataclass
class Pieces:
    """A dataset, its owners and all its parts."""

    dataset: GraphDataset
    owner: np.ndarray
    parts: list[Partition]


def keep_arcs(dataset, is_kept):
    """The dataset with only the arcs (source, target) for which is_kept is true."""
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    kept = is_kept(dataset.indices, target)
    shape = (dataset.num_nodes, dataset.num_nodes)
    arcs = scipy.sparse.csr_matrix((np.ones(kept.sum()), (target[kept], dataset.indices[kept])), shape)
    return replace(dataset, indptr=arcs.indptr.astype(np.int64), indices=arcs.indices.astype(np.int32))


@pytest.fixture(params=["undirected", "directed", "downhill", "apart"])
def shape(request):
    """downhill: the last rank has nothing to send and the first nothing to receive. apart: nobody has."""
    return request.param


@pytest.fixture
def cut():
    """cut(shape, num_ranks) -> Pieces, the same on every rank."""
    def cut_graph(shape, num_ranks):
        dataset = random_dataset(NUM_NODES, 240, seed=11, directed=shape != "undirected")
        owner = np.random.default_rng(5).permutation(np.arange(NUM_NODES) % num_ranks).astype(np.int32)
        if shape == "downhill":
            dataset = keep_arcs(dataset, lambda source, target: owner[source] <= owner[target])
        elif shape == "apart":
            dataset = keep_arcs(dataset, lambda source, target: owner[source] == owner[target])
        return Pieces(dataset, owner, [build_partition(dataset, owner, part, num_ranks) for part in range(num_ranks)])
    return cut_graph


class CountingComm:
    """Hands every call on to a communicator and lists the (destination, bytes) of what is sent."""

    def __init__(self, comm):
        self._comm, self.sent = comm, []

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Isend(self, message, destination, tag):
        self.sent.append((destination, memoryview(message[0]).nbytes))
        return self._comm.Isend(message, destination, tag)

    def Alltoallv(self, send, receive):
        counts, _ = send[1]
        self.sent += [(peer, count) for peer, count in enumerate(counts) if count]
        self._comm.Alltoallv(send, receive)

    @property
    def sent_bytes(self):
        return sum(num_bytes for _, num_bytes in self.sent)


@pytest.fixture
def counting_comm():
    """CountingComm over all ranks."""
    from mpi4py import MPI

    return CountingComm(MPI.COMM_WORLD)
