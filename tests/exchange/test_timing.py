"""Seconds of exchanges: a paced link takes its time, a pipeline doesn't wait for it, and waiting is counted once."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from exchange.epochs import Epochs
from mpi4py import MPI

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.kinds import Fresh
from hpcgnn.exchange.transfer import EXCHANGES, MAX_ROUNDS, SIZES, Link, ranks_of_node, time_rounds, timed_rounds
from hpcgnn.methods.problem import fit_links

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
    # On a busy machine a rank may begin to wait late, and so for less: the longest of three waits counts.
    synchronous = max((spent(epochs, False) for _ in range(3)), key=lambda traffic: traffic.blocked_seconds)
    asynchronous = spent(epochs, True)
    epochs.exchange.forget()
    assert synchronous.travel_seconds >= 2 * 0.99 * seconds
    assert synchronous.blocked_seconds >= 2 * 0.9 * seconds
    assert COMM.allreduce(asynchronous.blocked_seconds) < 0.5 * COMM.allreduce(synchronous.blocked_seconds)


@pytest.mark.parallel([2, 3])
def test_a_sum_takes_its_bytes_over_the_rate(cut):
    values, rate = torch.ones(100_000), 5e6
    epochs = Epochs(COMM, cut("undirected", COMM.size), bytes_per_second=rate)
    seconds = 2 * values.nbytes * (COMM.size - 1) / COMM.size / rate
    started = time.perf_counter()
    epochs.exchange.sum_over_ranks(values)
    assert time.perf_counter() - started >= 0.99 * seconds > 0.05
    assert epochs.exchange.training.take().blocked_seconds >= 0.9 * seconds


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
def test_timed_rounds_come_from_every_rank_and_see_a_slow_link():
    source, num_bytes, seconds = time_rounds(COMM, Link(20e6))
    assert set(source.tolist()) == set(range(COMM.size)) - {COMM.rank}
    assert COMM.size == 1 or set(num_bytes.tolist()) == set(SIZES)
    assert (seconds >= 0.99 * num_bytes / 20e6).all()
    assert sorted(ranks_of_node(COMM)) == list(range(COMM.size))
    theta = fit_links(range(COMM.size), [], source, num_bytes, seconds)[:, 0]
    # A bound from below only: a busy machine may make links slower than they are paced.
    assert COMM.size == 1 or (theta > 0.5 / 20e6).all()


@pytest.mark.parametrize("num_ranks, num_rounds", [(1, 0), (2, 1), (65, 64), (66, MAX_ROUNDS), (10_000, MAX_ROUNDS)])
def test_no_more_rounds_are_timed_than_a_few(num_ranks, num_rounds):
    """The first and the last are among them, which meet ranks of the same node."""
    rounds = timed_rounds(num_ranks)
    assert len(rounds) == num_rounds and (np.diff(rounds) > 0).all()
    assert num_ranks == 1 or (rounds[0], rounds[-1]) == (1, num_ranks - 1)
