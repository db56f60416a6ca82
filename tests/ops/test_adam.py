"""A step of Adam is the formula's, its check misses nothing, and its hash depends on nothing but the weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reference_adam import buffers, formula, hash_of

from hpcgnn.errors import KernelError
from hpcgnn.ops.adam import adam_step

SIZES = [0, 1, 3, 15, 16, 17, 1000, 8192, 8193, 40_000]


@pytest.mark.covering
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("number", [1, 10, 100_000])
def test_a_step_is_that_of_the_formula(simd, size, number):
    given = buffers(size)
    expected = formula(*given, number)
    weights, gradient, _, _, mean, square = moved = [tensor.clone() for tensor in given]
    check = adam_step(*moved, number)
    for found, wanted in zip((weights, mean, square), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-5, atol=2e-6)
    for unchanged in (1, 2, 3):
        assert torch.equal(moved[unchanged], given[unchanged])
    assert check.largest_gradient == (gradient.abs().max().item() if size else 0)
    assert check.largest_result == max((tensor.abs().max().item() for tensor in (weights, mean, square) if size),
                                       default=0)
    assert check.hash == hash_of(weights)


@pytest.mark.parametrize("size", [1000, 40_000])
def test_every_level_and_number_of_threads_has_the_same_bits(monkeypatch, simd, size):
    monkeypatch.setenv("HPCGNN_SIMD", "portable")
    expected = buffers(size)
    check = adam_step(*expected, 3)
    monkeypatch.setenv("HPCGNN_SIMD", simd)
    found = buffers(size)
    assert adam_step(*found, 3) == check
    assert all(torch.equal(mine, other) for mine, other in zip(found, expected, strict=True))


def test_another_bit_of_any_weight_is_another_hash():
    size = 300
    seen = set()
    for place in range(size):
        for bit in (0, 13, 31):
            given = buffers(size)
            given[2].zero_()    # the rate, so that weights stay as they are
            given[0].view(torch.int32)[place] ^= torch.tensor(1 << bit if bit < 31 else -2 ** 31, dtype=torch.int32)
            seen.add(adam_step(*given, 1).hash)
    assert len(seen) == 3 * size


@pytest.mark.parametrize("which, place, value", [
    *((1, place, value) for place in (0, 8191, 8192, 9000) for value in (math.nan, math.inf, -math.inf)),
    (0, 50, 3e38), (1, 50, 1e30), (2, 50, 1e38), (5, 50, math.inf)])
def test_a_gradient_weight_or_moment_that_is_not_finite_or_overflows_is_seen(which, place, value):
    given = buffers(9001)
    given[which][place] = value
    given[3][place] = 10.0      # the decay
    check = adam_step(*given, 1)
    assert check.has_finite_gradients == (place == 50) and not check.has_finite_results


@pytest.mark.parametrize("which", range(6))
def test_buffers_that_dont_fit_are_refused(which):
    given = buffers(10)
    given[which] = given[which].double() if which % 2 else torch.zeros(20)[::2] if which else torch.zeros(11)
    with pytest.raises(KernelError, match=r"Adam needs buffers of 1[01] contiguous float32"):
        adam_step(*given, 1)
