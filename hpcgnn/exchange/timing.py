"""Timed rounds of the ring, from which a cost model of the links is fitted. The model itself is in `adaptive`."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from hpcgnn.exchange.arena import MessageArena
from hpcgnn.exchange.plan import ring_rounds
from hpcgnn.exchange.ring import Link, Transfer

SIZES = (1 << 12, 1 << 16, 1 << 19)     # bytes
REPETITIONS = 3
MAX_ROUNDS = 64                         # timed; with more ranks an even selection of the rounds
TIMING_TAG = 32001


def time_rounds(comm: MPI.Comm, link: Link | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Collective: time messages of several sizes, all pairs of a round busy at once, as in an exchange.

    Returns
    -------
    pair : (samples,) int64          source * num_ranks + destination, complete on every rank
    num_bytes : (samples,) int64
    seconds : (samples,) float64     as the receiver saw them
    """
    rounds = ring_rounds(comm.rank, comm.size)
    chosen = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), MAX_ROUNDS)).astype(int)) if rounds else []
    arena, samples = MessageArena(), []
    for number in chosen:
        destination, source = rounds[number]
        for num_bytes in SIZES:
            for _ in range(REPETITIONS):
                sizes = np.zeros((2, comm.size), int)
                sizes[0, destination] = sizes[1, source] = num_bytes
                send, receive = arena.slices(*sizes.tolist())
                comm.Barrier()
                started = time.perf_counter()
                Transfer(comm, (rounds[number],), send, receive, TIMING_TAG, link).wait()
                samples.append((source * comm.size + comm.rank, num_bytes, time.perf_counter() - started))
    everyone = np.array([sample for part in comm.allgather(samples) for sample in part]).reshape(-1, 3)
    return everyone[:, 0].astype(np.int64), everyone[:, 1].astype(np.int64), everyone[:, 2]
