"""Timed rounds of the ring, from which a cost model of the links is fitted. The model itself is in `adaptive`."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from hpcgnn.exchange.arena import MessageArena
from hpcgnn.exchange.ring import Link, Transfer

SIZES = (1 << 12, 1 << 16, 1 << 19)     # bytes
REPETITIONS = 3
MAX_ROUNDS = 64                         # timed; with more ranks an even selection of the rounds
TIMING_TAG = 32001


def time_rounds(comm: MPI.Comm, link: Link | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Collective: time messages of several sizes, all pairs of a round busy at once, as in an exchange.

    Returns
    -------
    source : (samples,) int64        ranks whose messages this one received, of at most MAX_ROUNDS
    num_bytes : (samples,) int64
    seconds : (samples,) float64     as the receiver saw them
    """
    arena, samples = MessageArena(), []
    for number in timed_rounds(comm.size).tolist():
        destination, source = (comm.rank + number) % comm.size, (comm.rank - number) % comm.size
        for num_bytes in SIZES:
            for _ in range(REPETITIONS):
                send, receive = arena.slices([num_bytes, 0], [0, num_bytes])
                comm.Barrier()
                started = time.perf_counter()
                Transfer(comm, (destination, source), ((0, 1),), send, receive, TIMING_TAG, link).wait()
                samples.append((source, num_bytes, time.perf_counter() - started))
    found = np.array(samples).reshape(-1, 3)
    return found[:, 0].astype(np.int64), found[:, 1].astype(np.int64), found[:, 2]


def timed_rounds(num_ranks: int) -> np.ndarray:
    """Return (num_rounds,) int64, the rounds of the ring that are timed: all, or MAX_ROUNDS of them."""
    num_rounds = num_ranks - 1
    return np.unique(np.linspace(1, num_rounds, min(num_rounds, MAX_ROUNDS)).astype(np.int64))


def ranks_of_node(comm: MPI.Comm) -> list[int]:
    """Collective: return the ranks that share this one's memory."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = node.allgather(comm.rank)
    node.Free()
    return ranks
