"""Links fitted from timed messages, and the seconds of a ring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.methods.problem import fit, fit_links, fixed_links, pair_round

SIZES = np.repeat([1_000, 10_000, 100_000, 1_000_000], 7)


@given(theta=st.floats(1e-11, 1e-6), gamma=st.floats(1e-7, 1e-2))
@settings(max_examples=50, deadline=None)
def test_an_exact_link_is_found(theta, gamma):
    found = fit(SIZES, theta * SIZES + gamma)
    assert theta * 1e6 + gamma == pytest.approx(found[0] * 1e6 + found[1], rel=1e-6)
    assert found == pytest.approx((theta, gamma), rel=1e-3, abs=1e-6 * max(theta, gamma))


def test_stray_slow_repetitions_and_five_percent_of_noise_change_theta_by_less_than_five():
    """7 repetitions a size, 2 of them 10 times too slow; the bound holds for this seed and is 3 times what it finds."""
    rng = np.random.default_rng(0)
    seconds = (2e-9 * SIZES + 3e-5) * rng.normal(1, 0.05, len(SIZES))
    seconds[::7] *= 10
    seconds[3::7] *= 10
    theta, gamma = fit(SIZES, seconds)
    assert theta == pytest.approx(2e-9, rel=0.05) and gamma == pytest.approx(3e-5, rel=0.1)


def test_neither_parameter_is_negative():
    theta, gamma = fit(np.array([1000, 2000, 4000]), np.array([3e-6, 2e-6, 1e-6]))
    assert theta == 0 and gamma > 0
    theta, gamma = fit(np.array([1000, 2000, 4000]), np.array([1e-6, 4e-6, 12e-6]))
    assert theta > 0 and gamma == 0


@pytest.mark.parametrize("num_bytes, seconds, expected", [
    ([500, 500], [1e-6, 3e-6], (4e-9, 0.0)), ([0, 0], [1e-6, 1e-6], (0.0, 1e-6)), ([], [], (0.0, 0.0))])
def test_too_few_sizes_still_give_a_link(num_bytes, seconds, expected):
    assert fit(np.array(num_bytes, np.int64), np.array(seconds)) == pytest.approx(expected)


def test_peers_that_were_not_timed_get_the_median_of_their_side_of_the_node():
    source, sizes = np.repeat([1, 2, 3, 4], 2), np.tile([1000, 2000], 4)
    seconds = np.repeat([1e-9, 2e-9, 9e-9, 4e-9], 2) * sizes + 1e-5
    theta, gamma = fit_links((1, 3, 5, 6), [4, 5], source, sizes, seconds).T
    assert theta == pytest.approx([1e-9, 9e-9, 4e-9, 2e-9]) and gamma == pytest.approx([1e-5] * 4)
    nobody_near = fit_links((5,), [5], source, sizes, seconds)
    assert nobody_near[0] == pytest.approx([3e-9, 1e-5])
    nothing = fit_links((1, 2), [], source[:0], sizes[:0], seconds[:0])
    assert np.array_equal(nothing.T, [fixed_links(2).theta, fixed_links(2).gamma])


def test_rounds_are_those_of_the_ring():
    assert pair_round(3).reshape(3, 3).tolist() == [[0, 1, 2], [2, 0, 1], [1, 2, 0]]    # source, destination
