"""Clusters: groups of neighboring rows that stay together, and the step of an epoch that computes each group.

A step of whole clusters keeps more edges inside it than a step of random rows. Every epoch deals clusters to steps
anew, or, with `deal`, single nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from mpi4py import MPI

from hpcgnn.errors import ConfigError
from hpcgnn.exchange.halo import Around, HaloExchange
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.ops.spans import blocks
from hpcgnn.partition.choices import ROWS_A_CLUSTER
from hpcgnn.partition.kaminpar import kaminpar_parts
from hpcgnn.partition.order import undirected
from hpcgnn.run.launch import together

# data/benchmarks/steps.md: a small graph learns sooner in SMALL_GRAPHS_STEPS than in the few that ROWS_A_STEP gives.
ROWS_A_STEP, LEAST_ROWS_A_STEP, SMALL_GRAPHS_STEPS, LEAST_CLUSTERS_A_STEP = 2048, 1024, 16, 4
PURPOSE = 7            # part of the draws' key, with seed and epoch
HALF = 1 << 16         # a cluster's number is sent as two float32 columns; each holds 24 bits exactly
# Nodes that are dealt one by one.
LABELED_ROWS_A_STEP = 256     # at least, so that the labels of a step are like all labels
MOST_STEPS = 40               # more steps help hardly more, and cost time: data/benchmarks/steps.md
DEALING, RESTING = 8, 9       # as PURPOSE
GOLDEN, FIRST_FACTOR, SECOND_FACTOR = (np.uint64(factor) for factor in
                                       (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Clusters:
    inner: np.ndarray  # (num_inner,) int64, cluster numbers, the same for a node on all ranks
    halo: np.ndarray   # (num_halo,) int64
    count: int         # number of clusters of all ranks
    inside: float      # share of all edges with both ends in one cluster

    @classmethod
    def cut(cls, comm: MPI.Comm, graph: LocalGraph, stored: np.ndarray | None, exchange: HaloExchange | Around,
            seed: int) -> Clusters:
        """Collective: take the clusters `stored` in the shards, (num_inner,) int32, or cut each part into its own.

        Raises CollectiveError if KaMinPar gave up.
        """
        if comm.allreduce(int(stored is not None), MPI.MIN):
            inner = stored.astype(np.int64)
            count = 1 + comm.allreduce(int(inner.max(initial=-1)), MPI.MAX)
        else:
            own = together(comm, lambda: _clusters_of(*graph.arcs, seed))
            own_count = 1 + int(own.max(initial=-1))
            before = comm.exscan(own_count) or 0  # type: ignore[attr-defined]  # an Intracomm, as all of hpcgnn's are
            inner, count = own.astype(np.int64) + before, comm.allreduce(own_count)
        # Halo rows learn their clusters by an exchange of float32 columns.
        halves = np.stack([inner // HALF, inner % HALF], axis=1).astype(np.float32)
        rows = exchange.input_rows(torch.from_numpy(halves).to(graph.x.device))
        told = rows[graph.num_inner:].cpu().numpy().astype(np.int64)
        halo = told[:, 0] * HALF + told[:, 1]
        counted = np.array([count_inside(*graph.arcs, np.concatenate([inner, halo])), len(graph.arcs[1])])
        num_inside, num_arcs = comm.allreduce(counted)
        return cls(inner, halo, count, float(num_inside / max(1, num_arcs)))

    def check(self, num_steps: int) -> None:
        """Raise ConfigError if an epoch has more steps than there are clusters."""
        if num_steps > self.count:
            raise ConfigError(f"an epoch of {num_steps} steps needs at least {num_steps} clusters of about "
                              f"{ROWS_A_CLUSTER} rows, and this graph has {self.count}; choose at most {self.count} "
                              "for --steps")

    def steps(self, seed: int, epoch: int, num_steps: int) -> np.ndarray:
        """Draw the step of each cluster, (count,) int64, the same on any number of ranks.

        Consecutive clusters, `num_steps` of them, go to different steps. So every rank has about equally many clusters
        per step, and each step is spread over the whole graph.
        """
        rng = np.random.default_rng([seed, epoch, PURPOSE])
        block = (np.arange(self.count) + rng.integers(num_steps)) // num_steps
        order = np.lexsort((rng.random(self.count), block))
        step = np.empty(self.count, np.int64)
        # Blocks at the ends may be short. Each block is rotated randomly, so that no step gets more.
        turn = rng.integers(num_steps, size=block[-1] + 1)
        first = np.searchsorted(block, np.arange(block[-1] + 1))
        step[order] = (np.arange(self.count) - first[block] + turn[block]) % num_steps
        return step


def count_inside(indptr: np.ndarray, indices: np.ndarray, cluster: np.ndarray) -> int:
    """Number of edges of a CSR with both ends in one cluster; `cluster` has an entry for every row in the CSR."""
    return sum(int(np.count_nonzero(cluster[indices[indptr[start]:indptr[stop]]] ==
                                    np.repeat(cluster[start:stop], np.diff(indptr[start:stop + 1]))))
               for start, stop in blocks(0, len(indptr) - 1))


def expected_clusters(num_inner: int) -> int:
    """How many clusters a part is cut into; on a tiny graph some may be empty."""
    return -(-num_inner // ROWS_A_CLUSTER)


def first_steps(num_nodes: int, num_clusters: int) -> int:
    """Number of steps that training in clusters starts with: about ROWS_A_STEP rows of all ranks per step.

    A graph too small for SMALL_GRAPHS_STEPS such steps has up to this number, of LEAST_ROWS_A_STEP rows or more.
    """
    wanted = max(num_nodes // ROWS_A_STEP, min(SMALL_GRAPHS_STEPS, num_nodes // LEAST_ROWS_A_STEP))
    return max(1, min(wanted, num_clusters // LEAST_CLUSTERS_A_STEP))


def num_steps_of(num_train: int) -> int:
    """Number of steps that suits rows drawn one by one, for `num_train` labeled nodes of all ranks."""
    return max(1, min(MOST_STEPS, num_train // LABELED_ROWS_A_STEP))


def deal(node_id: np.ndarray, seed: int, epoch: int, num_steps: int) -> np.ndarray:
    """Draw the step of each node, (n,) int64 in [0, num_steps), from its global number; all ranks draw the same."""
    return _drawn(node_id, (seed, epoch, DEALING), num_steps)


def rests_in(node_id: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Whether a node without a label rests in an epoch, (n,) bool. Each node rests in every second epoch."""
    return _drawn(node_id, (seed, RESTING), 2) == epoch % 2


def _drawn(node_id: np.ndarray, key: tuple[int, ...], count: int) -> np.ndarray:
    # Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014 (SplitMix64): in [0, count).
    first = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    mixed = node_id.astype(np.uint64) * GOLDEN + first
    mixed = (mixed ^ (mixed >> np.uint64(30))) * FIRST_FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(27))) * SECOND_FACTOR
    mixed ^= mixed >> np.uint64(31)
    return ((mixed >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def _clusters_of(indptr: np.ndarray, indices: np.ndarray, seed: int) -> np.ndarray:
    num_inner = len(indptr) - 1
    num_clusters, is_inner = expected_clusters(num_inner), indices < num_inner
    # Without inner edges, consecutive rows form the clusters.
    if num_clusters < 2 or not is_inner.any():
        return (np.arange(num_inner) // ROWS_A_CLUSTER).astype(np.int32)
    near = np.concatenate([[0], np.cumsum(is_inner)])[indptr]
    arcs = undirected(scipy.sparse.csr_matrix((np.ones(int(near[-1]), np.int8), indices[is_inner], near),
                                              shape=(num_inner, num_inner)))
    return kaminpar_parts(arcs.indptr, arcs.indices, num_clusters, seed, name="the rows of a rank",
                          advice="store clusters in the shards by hpcgnn preprocess")
