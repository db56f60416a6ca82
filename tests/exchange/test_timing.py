"""Seconds of exchanges: a paced link takes its time, a pipeline doesn't wait for it, and waiting is counted once."""

from __future__ import annotations

import time

import numpy as np
import pytest
from exchange.epochs import Epochs
from mpi4py import MPI

from hpcgnn.adaptive.cost_model import fit_links
from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.kinds import Fresh
from hpcgnn.exchange.ring import EXCHANGES, Link
from hpcgnn.exchange.timing import SIZES, time_rounds

COMM = MPI.COMM_WORLD
DIM, MESSAGE_SECONDS = 64, 0.05


def paced(cut):
    """One rank's exchange on a link on which its larger side of an exchange takes MESSAGE_SECONDS, and that side."""
    pieces = cut("undirected", COMM.size)
    plain = Epochs(COMM, pieces)
    num_bytes = 4 * DIM * max(sum(map(len, plain.plan.boundary)), sum(map(len, plain.plan.halo)))
    rate = COMM.allreduce(num_bytes, MPI.MIN) / MESSAGE_SECONDS
    return Epochs(COMM, pieces, bytes_per_second=rate), num_bytes / rate


def spent(epochs, is_asynchronous):
    """Collective: traffic of an epoch that computes for twice as long as a message takes."""
    epochs.begin(int(is_asynchronous), UniformBits(32), is_asynchronous)
    rows = epochs.stamp(1, DIM)
    epochs.there_and_back(rows, rows)
    time.sleep(4 * MESSAGE_SECONDS)
    return epochs.exchange.training.take()


@pytest.mark.parallel([2, 3])
def test_a_paced_message_travels_for_its_bytes_over_the_rate_and_a_pipeline_does_not_wait(cut):
    epochs, seconds = paced(cut)
    synchronous = spent(epochs, False)
    asynchronous = spent(epochs, True)
    epochs.exchange.forget()
    assert synchronous.travel_seconds >= 2 * 0.99 * seconds
    assert synchronous.blocked_seconds >= 2 * 0.9 * seconds
    assert COMM.allreduce(asynchronous.blocked_seconds) < 0.5 * COMM.allreduce(synchronous.blocked_seconds)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("algorithm", list(EXCHANGES))
def test_waiting_is_a_part_of_the_seconds_in_exchanges(cut, algorithm):
    epochs = Epochs(COMM, cut("undirected", COMM.size), Fresh, algorithm)
    epochs.begin(0, UniformBits(32))
    epochs.there_and_back(epochs.stamp(0), epochs.stamp(0))
    traffic = epochs.exchange.training.take()
    assert 0 < traffic.blocked_seconds <= traffic.exchange_seconds
    assert traffic.travel_seconds > 0


def test_a_link_carries_one_exchange_after_another():
    link = Link(1000.0)
    first, second = link.reserve(100), link.reserve(50)
    assert second - first == pytest.approx(0.05)
    assert Link(0.0).reserve(10**9) <= time.perf_counter()


@pytest.mark.parallel([1, 2, 3, 4])
def test_timed_rounds_name_every_pair_and_see_a_slow_link(cut):
    pair, num_bytes, seconds = time_rounds(COMM, Link(20e6))
    source, destination = np.divmod(pair, COMM.size)
    expected = {(a, b) for a in range(COMM.size) for b in range(COMM.size) if a != b}
    assert set(zip(source.tolist(), destination.tolist(), strict=True)) == expected
    assert COMM.size == 1 or set(num_bytes.tolist()) == set(SIZES)
    assert (seconds >= 0.99 * num_bytes / 20e6).all()
    theta = fit_links(COMM.size, pair, num_bytes, seconds).theta.reshape(COMM.size, COMM.size)
    # A bound from below only: a busy machine may make links slower than they are paced.
    assert COMM.size == 1 or (theta[~np.eye(COMM.size, dtype=bool)] > 0.5 / 20e6).all()
