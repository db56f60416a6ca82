"""Sums over the ranks whose values travel as codes: without bias, the same on all ranks, in few bytes, and what a code
lacks comes with the next sum.
"""

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


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize(("bits", "row_bytes"), [(1, 32 + 2), (2, 64 + 2), (4, 128 + 2), (8, 256 + 4), (16, 512)])
def test_few_values_have_few_owners(bits, row_bytes):
    """One row of codes: every rank but its owner sends it once, and the owner sends the sums to all others."""
    values, sent = sums_of(COLUMNS, bits)
    assert sent == row_bytes * (COMM.size - 1 if COMM.rank == 0 else 1)
    assert len({found.numpy().tobytes() for found in COMM.allgather(values)}) == 1


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("num_values", [1, 600, 5000])
def test_what_was_not_sent_is_all_that_lacks(bits, num_values, num_sums=8):
    """The sums that were found and what all ranks still have to send add up to the sum of all values."""
    sums, found, exact = QuantizedSums(COMM, bits), 0, 0
    for number in range(num_sums):
        values = values_of(COMM.rank, num_values, number)
        exact = exact + sum(values_of(rank, num_values, number).double() for rank in range(COMM.size))
        sums.sum(values, CounterKey(0, number, SUM, 0))
        found = found + values.double()
    unsent = COMM.allreduce(sums.state()["unsent"].astype(np.float64)).ravel()[:num_values]
    assert np.abs(unsent).max() > 1e-3 or bits > 4 or num_values == 1     # else the test would see nothing
    assert np.abs(found.numpy() + unsent - exact.numpy()).max() < 2e-4


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_what_is_not_sent_does_not_grow(bits, num_sums=300):
    """A rotated code of 1 bit lacks 0.57 of a row's square on average, so what waits stays at about 1.2 times the
    values' own norm, and the mean of 300 sums is within a hundredth of the sum.
    """
    sums, values, total = QuantizedSums(COMM, bits), values_of(COMM.rank, 2000), 0
    exact = sum(values_of(rank, 2000).double() for rank in range(COMM.size))
    for number in range(num_sums):
        sent = values.clone()
        sums.sum(sent, CounterKey(0, number, SUM, 0))
        total = total + sent.double()
    assert (total / num_sums - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parallel([2, 3])
def test_sums_go_on_from_a_state_and_from_nothing_once_it_is_forgotten(bits=2):
    def next_of(sums):
        values = values_of(COMM.rank, 700, 1)
        sums.sum(values, CounterKey(0, 1, SUM, 0))
        return values

    first, other = QuantizedSums(COMM, bits), QuantizedSums(COMM, bits)
    fresh = next_of(QuantizedSums(COMM, bits))
    first.sum(values_of(COMM.rank, 700), CounterKey(0, 0, SUM, 0))
    state = {name: np.copy(value) for name, value in first.state().items()}
    other.restore(state)
    expected = next_of(first)
    assert torch.equal(next_of(other), expected) and not torch.equal(fresh, expected)
    other.restore(state)
    other.forget()
    assert torch.equal(next_of(other), fresh)


@pytest.mark.parallel(2)
def test_a_state_of_other_gradients_is_refused():
    sums = QuantizedSums(COMM, 2)
    with pytest.raises(KernelError, match="what codes of sums lacked"):
        sums.restore({"num_values": 700, "unsent": np.zeros((3, COLUMNS), np.float32)})


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2e38])
@pytest.mark.parametrize("num_values", [100, 1500])
@pytest.mark.parametrize("bits", [1, 8, 16])
def test_a_value_without_a_code_makes_sums_nan_on_all_ranks_and_loses_nothing(bits, num_values, value):
    """As it would in float32; what was left of the sums before comes with the next one, in another loss scale too."""
    sums, found, exact = QuantizedSums(COMM, bits), 0, 0
    for number in range(6):
        values = values_of(COMM.rank, num_values, number)
        if number == 3:
            values[-1] = value if COMM.rank == COMM.size - 1 else 0.0
            sums.sum(values, CounterKey(0, number, SUM, 0))
            assert torch.isnan(values).any() and len({one.numpy().tobytes() for one in COMM.allgather(values)}) == 1
            continue
        scale = 2.0 ** (10 - number)
        exact = exact + sum(values_of(rank, num_values, number).double() for rank in range(COMM.size))
        values *= scale
        sums.sum(values, CounterKey(0, number, SUM, 0), scale)
        found = found + values.double() / scale
    unsent = COMM.allreduce(sums.state()["unsent"].astype(np.float64)).ravel()[:num_values]
    assert np.abs(found.numpy() + unsent - exact.numpy()).max() < 1e-4
