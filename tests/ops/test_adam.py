"""A step of Adam is the formula's, its check misses nothing, and its hash depends on nothing but the weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.adam import adam_step
from hpcgnn.ops.dispatch import device_kernels_on_cpu

SIZES = [0, 1, 3, 15, 16, 17, 1000, 8192, 8193, 40_000]


def buffers(size, seed=0):
    """weights, gradient, lr, decay, mean, square."""
    random = torch.Generator().manual_seed(seed)
    weights, gradient, mean = (torch.randn(size, generator=random) for _ in range(3))
    lr, decay, square = (torch.rand(size, generator=random) for _ in range(3))
    return [weights, gradient, 0.1 * lr, decay, mean, square]


def formula(weights, gradient, lr, decay, mean, square, number):
    """Kingma and Ba's algorithm 1 with L2 decay, in float64."""
    weights, gradient, lr, decay, mean, square = (tensor.double().numpy() for tensor in (weights, gradient, lr, decay,
                                                                                         mean, square))
    slope = gradient + decay * weights
    mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope ** 2
    unbiased_mean, unbiased_square = mean / (1 - 0.9 ** number), square / (1 - 0.999 ** number)
    return weights - lr * unbiased_mean / (np.sqrt(unbiased_square) + 1e-8), mean, square


def hash_of(weights):
    """What ext/src/adam_body.h says, number by number."""
    low = high = 0
    for index, bits in enumerate(weights.numpy().view(np.uint32).tolist()):
        mixed = bits ^ (index * 0x9E3779B1 % 2 ** 32)
        mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2 ** 32
        mixed ^= mixed >> 13
        low += mixed
        mixed = mixed * 0xC2B2AE35 % 2 ** 32
        high += mixed ^ (mixed >> 16)
    return (high % 2 ** 32) << 32 | low % 2 ** 32


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


def test_weights_that_change_places_have_another_hash():
    given, swapped = buffers(50), buffers(50)
    swapped[0][[3, 7]] = swapped[0][[7, 3]]
    given[2].zero_()
    swapped[2].zero_()
    assert adam_step(*given, 1).hash != adam_step(*swapped, 1).hash


@pytest.mark.covering
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 8191, 8192, 9000])
@pytest.mark.parametrize("is_device", [False, True])
def test_one_gradient_that_is_not_finite_is_seen(value, place, is_device):
    given = buffers(9001)
    given[1][place] = value
    check = step(given, is_device)
    assert not check.has_finite_gradients and not check.has_finite_results


@pytest.mark.parametrize("which, value", [(0, 3e38), (1, 1e30), (2, 1e38), (5, math.inf)])
@pytest.mark.parametrize("is_device", [False, True])
def test_a_weight_or_moment_that_overflows_is_seen(which, value, is_device):
    given = buffers(100)
    given[which][50] = value
    if which == 0:
        given[3][50] = 10.0     # the decay
    check = step(given, is_device)
    assert check.has_finite_gradients and not check.has_finite_results


def step(given, is_device):
    if not is_device:
        return adam_step(*given, 1)
    with device_kernels_on_cpu():
        return adam_step(*given, 1)


@pytest.mark.parametrize("size", SIZES)
def test_the_device_takes_the_same_step(size):
    mine, other = buffers(size), buffers(size)
    check, device_check = step(mine, False), step(other, True)
    for found, wanted in zip(other, mine, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert device_check.hash == hash_of(other[0])
    assert device_check.largest_result == pytest.approx(check.largest_result, rel=1e-5)


@pytest.mark.parametrize("which", range(6))
def test_buffers_that_dont_fit_are_refused(which):
    given = buffers(10)
    given[which] = given[which].double() if which % 2 else torch.zeros(20)[::2] if which else torch.zeros(11)
    with pytest.raises(KernelError, match=r"Adam needs buffers of 1[01] contiguous float32"):
        adam_step(*given, 1)
