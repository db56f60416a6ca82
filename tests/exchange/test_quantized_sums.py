"""Sums over the ranks whose values travel as codes: without bias, the same on all ranks, in few bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.quantized_sums import COLUMNS, QuantizedSums
from hpcgnn.ops.counter import SUM, CounterKey

COMM = MPI.COMM_WORLD


def values_of(rank, num_values, seed=0):
    return torch.from_numpy(np.random.default_rng([seed, rank]).normal(size=num_values).astype(np.float32))


def sums_of(num_values, bits, epoch=0, seed=0):
    """Collective: the quantized sums, and the bytes that this rank sent."""
    values = values_of(COMM.rank, num_values, seed)
    sent = QuantizedSums(COMM, bits).sum(values, CounterKey(0, epoch, SUM, 3))
    return values, sent


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("num_values", [1, 255, 256, 1500, 5000])
def test_sums_are_near_and_the_same_on_all_ranks(num_values, bits):
    """A code of 8 bits errs by less than a step, 1/255 of a row's range (and 1/128 for a step in bfloat16); P - 1 codes
    are added, and their sum is rounded once more.
    """
    found, _ = sums_of(num_values, bits)
    exact = sum(values_of(rank, num_values).double() for rank in range(COMM.size))
    largest = max(values_of(rank, num_values).abs().max().item() for rank in range(COMM.size))
    step = 2 * largest / 255 * 1.02 if bits == 8 else largest / 128
    assert (found.double() - exact).abs().max() < step * (COMM.size - 1) + step * COMM.size
    assert len({values.numpy().tobytes() for values in COMM.allgather(found)}) == 1


@pytest.mark.parallel([2, 3])
def test_the_mean_over_epochs_is_the_sum(num_epochs=400):
    """An error is below 0.1 of a value, so its mean over 400 epochs below 0.02 with four standard deviations."""
    exact = sum(values_of(rank, 600).double() for rank in range(COMM.size))
    mean = sum(sums_of(600, 8, epoch)[0].double() for epoch in range(num_epochs)) / num_epochs
    assert (mean - exact).abs().max() < 0.02
    one, other = (sums_of(600, 8, epoch)[0] for epoch in (0, 1))
    assert not torch.equal(one, other)


@pytest.mark.parallel([2, 3, 4])
def test_a_rank_sends_two_codes_a_value_however_many_ranks_there_are(num_values=COLUMNS * 48):
    _, sent = sums_of(num_values, 8)
    whole = num_values + 4 * 48      # a zero point and a step a row
    assert sent == 2 * (COMM.size - 1) * whole // COMM.size


@pytest.mark.parallel(2)
def test_gradients_that_are_not_finite_are_refused():
    values = torch.full((600,), float("nan"))
    with pytest.raises(KernelError):
        QuantizedSums(COMM, 8).sum(values, CounterKey(0, 0, SUM, 0))
