"""Transfers: move the packed messages of one exchange, by rounds of a ring or by one Alltoallv.

In round i every rank sends to rank + i and receives from rank - i, so each link carries one message at a time; the next
round is posted when the last one has arrived. MPI makes progress only while it is called, so code that computes
meanwhile calls `poll` between blocks of rows. `time_rounds` measures rounds; cost models are fitted to them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcgnn.exchange.codec import MessageArena
from hpcgnn.exchange.delivery import Delivery, HostDelivery
from hpcgnn.exchange.plan import Rounds
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.ops.quantization import Buffer
from hpcgnn.run.watchdog import HERE

SIZES = (1 << 12, 1 << 16, 1 << 19)     # bytes
REPETITIONS = 3
MAX_ROUNDS = 64                         # timed rounds; with more ranks, evenly selected ones
TIMING_TAG = 32001
MAX_TAG = 32767    # largest tag that every MPI allows


class Transfer:
    """Messages of one exchange on their way. All ranks post the same exchanges in the same order.

    Parameters
    ----------
    peers : ranks of the buffers
    rounds : (destination, source) of each round, as places in `peers`
    send, receive : list of uint8 buffers, one per peer, not to be touched before arrival; empty ones cost nothing
    tag : int                    equal on all ranks for one exchange
    link : Link or None
    traffic : Traffic or None    counts the seconds
    is_open : bool               post all rounds at once, for messages that nobody polls
    delivery : Delivery or None  by default on the host
    name_of : function           name of the exchange with a tag, for reports of where a rank waits
    """

    def __init__(self, comm: MPI.Comm, peers: Sequence[int], rounds: Rounds, send: list[Buffer], receive: list[Buffer],
                 tag: int, link: Link | None = None, traffic: Traffic | None = None, is_open: bool = False,
                 delivery: Delivery | None = None, name_of: Callable[[int], str] = "exchange {}".format):
        self._tag, self._name_of, self._peers, self._rank = tag, name_of, peers, comm.rank
        self._round, self._num_rounds, self._partners = 0, len(rounds), rounds[-1] if rounds else (0, 0)
        self._delivery: Delivery | None = delivery or HostDelivery(comm, peers, send, receive, tag)
        self._rounds = deque(rounds)
        self.sent_bytes = sum(map(len, send))
        self._traffic = traffic or Traffic()
        self._has_arrived = False
        self._traffic.depart()
        started = time.perf_counter()
        self._due = (link or Link()).reserve(max(self.sent_bytes, sum(map(len, receive))))
        is_first = True
        while self._rounds and (is_open or is_first or self._delivery.poll()):
            self._post_round()
            is_first = False
        self._traffic.exchange_seconds += time.perf_counter() - started

    def poll(self) -> bool:
        started = time.perf_counter()
        while not self._has_arrived and self._delivery.poll():
            if not self._rounds:
                if time.perf_counter() < self._due:
                    break
                self._arrive()
            else:
                self._post_round()
        self._traffic.exchange_seconds += time.perf_counter() - started
        return self._has_arrived

    def wait(self) -> None:
        if self._has_arrived:
            return
        started = time.perf_counter()
        with self._traffic.waiting():
            self._note_waiting()
            self._delivery.wait()
            while self._rounds:
                self._post_round()
                self._note_waiting()
                self._delivery.wait()
            early = self._due - time.perf_counter()
            if early > 0:      # even a sleep of 0 s would give the core away
                time.sleep(early)
        self._arrive()
        HERE.note("computes")
        self._traffic.exchange_seconds += time.perf_counter() - started

    def _post_round(self) -> None:
        self._partners = self._rounds.popleft()
        self._round += 1
        self._delivery.post(*self._partners)

    def _note_waiting(self) -> None:
        HERE.note(waiting, self._name_of, self._tag, self._round, self._num_rounds, self._rank,
                  *(self._peers[place] for place in self._partners))

    def _arrive(self) -> None:
        self._has_arrived = True
        if isinstance(self._delivery, HostDelivery):
            self._delivery = None      # frees the sent buffers, which only a device's kernels may still read
        self._traffic.arrive()


def waiting(name_of: Callable[[int], str], tag: int, number: int, num_rounds: int, rank: int, destination: int,
            source: int) -> str:
    """Describe, as a verb phrase, that a rank waits in round `number`, counted from 1."""
    met = list(dict.fromkeys(peer for peer in (source, destination) if peer != rank)) or [rank]
    peers = f"rank {met[0]}" if len(met) == 1 else f"ranks {met[0]} and {met[1]}"
    return f"waits for {peers} in round {number} of {num_rounds} of {name_of(tag)}"


class AlltoallvTransfer(Transfer):
    """Collective: the same messages in one MPI_Alltoallv, finished on construction; ranks without peers take part too.

    Raises KernelError if a rank's messages exceed 2 GiB, the limit of Alltoallv's 32-bit counts.
    """

    def __init__(self, comm: MPI.Comm, peers: Sequence[int], rounds: Rounds, *others: Any, **named: Any):
        super().__init__(comm, peers, rounds or ((0, 0),) * (comm.size > 1), *others, **named)

    def _post_round(self) -> None:
        self._rounds.clear()
        HERE.note("waits for all ranks in an Alltoallv")
        with self._traffic.waiting():
            self._delivery.post_all()
        HERE.note("computes")


EXCHANGES: dict[str, type[Transfer]] = {"ring": Transfer, "alltoallv": AlltoallvTransfer}


class Link:
    """Delays messages like a link of `bytes_per_second` each way, one exchange after another. 0: no delay."""

    def __init__(self, bytes_per_second: float = 0.0):
        self._rate, self._is_free_at = bytes_per_second, 0.0

    def reserve(self, num_bytes: int) -> float:
        """Return the time (perf_counter) at which `num_bytes` posted now will have arrived."""
        now = time.perf_counter()
        if self._rate:
            self._is_free_at = max(now, self._is_free_at) + num_bytes / self._rate
        return max(now, self._is_free_at)


def time_rounds(comm: MPI.Comm, link: Link | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Collective: time messages of several sizes; all pairs of a round are busy at once, as in an exchange.

    Returns (samples,) source, of at most MAX_ROUNDS different senders, num_bytes, and seconds as the receiver saw them.
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
    num_rounds = num_ranks - 1
    return np.unique(np.linspace(1, num_rounds, min(num_rounds, MAX_ROUNDS)).astype(np.int64))


def ranks_of_node(comm: MPI.Comm) -> list[int]:
    """Collective: return the ranks that share memory with this one."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = node.allgather(comm.rank)
    node.Free()
    return ranks
