"""`hpcgnn bench exchange`: what is timed is the whole exchange, and it stands beside the memory's ceiling."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI

from hpcgnn.bench.exchange import PLAIN, ExchangeBenchmark, RanksPlace
from hpcgnn.bench.timing import CEILING, OURS, Effort
from hpcgnn.exchange.codec import MessageArena
from hpcgnn.exchange.transfer import EXCHANGES

COMM = MPI.COMM_WORLD
NUM_BYTES = 3 << 20     # no eager message: it has not arrived when it is posted


def filling(source, destination, num_bytes):
    """The bytes of one message, which tell whose they are."""
    return np.random.default_rng([source, destination]).integers(0, 256, num_bytes, np.uint8)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("name", [PLAIN, *EXCHANGES])
def test_the_work_that_is_timed_leaves_the_bytes_that_were_sent(name):
    sizes = [0 if peer == COMM.rank else NUM_BYTES for peer in range(COMM.size)]
    send, receive = MessageArena().slices(sizes, sizes)
    for peer, (message, place) in enumerate(zip(send, receive, strict=True)):
        message[:], place[:] = filling(COMM.rank, peer, len(message)), 0
    work = ExchangeBenchmark(RanksPlace(Effort(1), comm=COMM), 1, 1).exchanges(send, receive)[name]
    COMM.Barrier()
    time.sleep(0.2 * COMM.rank)      # rank 0 has posted its messages long before the others send theirs
    work()
    arrived = [place.copy() for place in receive]     # as they are when the work has returned
    COMM.Barrier()
    for peer, message in enumerate(arrived):
        assert np.array_equal(message, filling(peer, COMM.rank, sizes[peer])), (name, peer)


@pytest.mark.parallel([2])
def test_both_exchanges_stand_beside_plain_messages_and_copies_of_as_many_bytes():
    rows = list(ExchangeBenchmark(RanksPlace(Effort(3), comm=COMM), 40, 7).measure())
    exchanges = [row for row in rows if row.case.startswith(tuple(EXCHANGES))]
    assert len(exchanges) == 6 * len(EXCHANGES)
    for row in exchanges:
        assert list(row.seconds) == [OURS, CEILING, PLAIN]
        assert all(len(spent) == 3 for spent in row.seconds.values())


@pytest.mark.parallel([2, 3])
def test_all_ranks_take_the_seconds_of_the_slowest():
    place = RanksPlace(Effort(3), comm=COMM)
    seconds = place.interleave({"work": lambda: time.sleep(0.05 * COMM.rank)})["work"]
    assert COMM.allgather(seconds) == COMM.size * [seconds] and min(seconds) >= 0.05 * (COMM.size - 1)
