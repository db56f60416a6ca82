"""Clusters: groups of neighboring rows that stay together, and the step of an epoch that each of them belongs to.

Rows are numbers here; what a step computes of them is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from mpi4py import MPI

from hpcgnn.errors import ConfigError
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.launch import together
from hpcgnn.partition.order import cluster_rows
from hpcgnn.partition.partition import Partition

# Many small clusters make steps that are like the whole graph; larger ones keep more arcs inside a step.
ROWS_A_CLUSTER = 106
ROWS_A_STEP, LEAST_CLUSTERS_A_STEP = 2048, 4
PURPOSE = 7            # of the draws, beside seed and epoch
HALF = 1 << 16         # numbers cross as two float32 columns, each of which holds 24 bits exactly


@dataclass(frozen=True)
class Clusters:
    """The cluster of each row of a rank.

    Attributes
    ----------
    inner : (num_inner,) int64     cluster numbers, the same for a node on all ranks
    halo : (num_halo,) int64
    count : int                    clusters of all ranks
    """

    inner: np.ndarray
    halo: np.ndarray
    count: int

    @classmethod
    def measure(cls, comm: MPI.Comm, part: Partition, exchange: HaloExchange, seed: int) -> Clusters:
        """Collective: take the clusters that the shards hold, or cut each part into clusters of its own.

        Raises
        ------
        CollectiveError      METIS gave up
        """
        if comm.allreduce(int(part.cluster is not None), MPI.MIN):
            inner = part.cluster.astype(np.int64)
            count = 1 + comm.allreduce(int(inner.max(initial=-1)), MPI.MAX)
        else:
            own = together(comm, lambda: _clusters_of(part, seed))
            own_count = 1 + int(own.max(initial=-1))
            inner, count = own.astype(np.int64) + (comm.exscan(own_count) or 0), comm.allreduce(own_count)
        halves = np.stack([inner // HALF, inner % HALF], axis=1).astype(np.float32)
        told = exchange.input_rows(torch.from_numpy(halves))[part.num_inner:].numpy().astype(np.int64)
        return cls(inner, told[:, 0] * HALF + told[:, 1], count)

    def check(self, num_steps: int) -> None:
        """Check that each step of an epoch gets a cluster.

        Raises
        ------
        ConfigError      there are fewer clusters than steps
        """
        if num_steps > self.count:
            raise ConfigError(f"an epoch of {num_steps} steps needs as many clusters of about {ROWS_A_CLUSTER} rows, "
                              f"and this graph has {self.count}; choose at most {self.count} for --steps")

    def first_steps(self, num_nodes: int) -> int:
        """Return the number of steps that a training begins with: of about ROWS_A_STEP rows of all ranks."""
        return max(1, min(num_nodes // ROWS_A_STEP, self.count // LEAST_CLUSTERS_A_STEP))

    def steps(self, seed: int, epoch: int, num_steps: int) -> np.ndarray:
        """Draw the step of each cluster, (count,) int64: the same on any number of ranks that share the clusters.

        Each of `num_steps` consecutive clusters goes to another step, so that steps have about equally many clusters on
        every rank, and are spread over the whole graph.
        """
        rng = np.random.default_rng([seed, epoch, PURPOSE])
        block = (np.arange(self.count) + rng.integers(num_steps)) // num_steps
        order = np.lexsort((rng.random(self.count), block))
        step = np.empty(self.count, np.int64)
        # A block at either end may be short: a turn of its own gives no step more of these than others.
        turn = rng.integers(num_steps, size=block[-1] + 1)
        first = np.searchsorted(block, np.arange(block[-1] + 1))
        step[order] = (np.arange(self.count) - first[block] + turn[block]) % num_steps
        return step


def _clusters_of(part: Partition, seed: int) -> np.ndarray:
    """Cut a part into clusters by the arcs inside it, (num_inner,) int32; without any into rows that follow each other.

    Raises
    ------
    ConfigError      METIS gave up
    """
    is_inner = part.indices < part.num_inner
    if not is_inner.any():
        return (np.arange(part.num_inner) // ROWS_A_CLUSTER).astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(is_inner)])[part.indptr]
    arcs = scipy.sparse.csr_matrix((np.ones(int(indptr[-1]), np.int8), part.indices[is_inner], indptr),
                                   shape=(part.num_inner, part.num_inner))
    return cluster_rows(arcs, ROWS_A_CLUSTER, seed, f"part {part.part}")
