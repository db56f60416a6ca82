"""A step of Adam on the device has the host's bits, and its check, which is read later, is the host's."""

from __future__ import annotations

import math

import pytest
import torch
from reference_adam import buffers, hash_of

from hpcgnn.ops import adam as operations
from hpcgnn.ops.adam import AdamFactors, StepCheck, UnreadCheck, worst_of
from hpcgnn.ops.cuda import adam

SIZES = [0, 1, 255, 256, 1025, 20_000]     # 1,024 values a block; more than one block is joined


def step_on(device, given, number=1):
    """The buffers after a step on the device, and its check."""
    there = [tensor.to(device, copy=True) for tensor in given]
    check = adam.adam_step(*there, AdamFactors.of_step(number))
    return [tensor.cpu() for tensor in there], check


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("number", [1, 100])
def test_a_step_has_the_host_s_bits_and_check(device, size, number):
    expected = buffers(size)
    check = operations._adam_step.host(*expected, AdamFactors.of_step(number))
    found, unread = step_on(device, buffers(size), number)
    assert all(torch.equal(mine, other) for mine, other in zip(found, expected, strict=True))
    assert unread.read() == check and check.hash == hash_of(found[0])


@pytest.mark.parametrize("which, place, value", [
    *((1, place, value) for place in (0, 1023, 1024, 2999) for value in (math.nan, math.inf, -math.inf)),
    (0, 50, 3e38), (1, 50, 1e30), (2, 50, 1e38), (5, 50, math.inf)])
def test_a_gradient_weight_or_moment_that_is_not_finite_or_overflows_is_seen(device, which, place, value):
    given = buffers(3000)
    given[which][place] = value
    given[3][place] = 10.0      # the decay
    expected = operations._adam_step.host(*(tensor.clone() for tensor in given), AdamFactors.of_step(1))
    check = step_on(device, given)[1].read()
    assert check.has_finite_gradients == expected.has_finite_gradients == (place == 50)
    assert not check.has_finite_results and not expected.has_finite_results


@pytest.mark.parametrize("size", [1, 300, 20_000])
@pytest.mark.parametrize("has_moments", [False, True])
def test_a_check_of_another_optimizer_s_step_is_the_host_s(device, size, has_moments):
    weights, gradient, _, _, mean, square = buffers(size)
    mean[size // 2] = 7.0
    given = gradient, weights, *((mean, square) if has_moments else ())
    expected = operations._check_of.host(*given)
    assert adam.check_of(*(tensor.to(device) for tensor in given)).read() == expected
    assert has_moments == (expected.largest_result == 7.0)


def test_checks_of_several_steps_are_read_at_once(device):
    checks = []
    for number, value in enumerate((math.inf, 1.0, 2.0)):
        given = buffers(300, seed=number)
        given[1][number] = value
        moved, check = step_on(device, given)
        checks.append(check)
    unread = worst_of(checks)
    assert isinstance(unread, UnreadCheck)
    worst = unread.read()
    assert worst.largest_gradient == math.inf and math.isnan(worst.largest_result)      # infinite by infinite
    assert worst.hash == hash_of(moved[0])
    before = StepCheck(1.0, math.nan, 5)
    joined = worst_of([before, *checks[1:]])
    assert joined.hash == hash_of(moved[0]) and joined.has_finite_gradients and not joined.has_finite_results
