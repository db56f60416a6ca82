"""What a width leaves of a row as variance, by affine and by rotated codes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from hpcgnn.methods.problem import Problem, variance_factors
from hpcgnn.widths import GAUSSIAN_STEP, ROTATED_ERROR, ROTATED_NORM


def normal_moments(bits, factor=1.0):
    """E[x q] and E[q^2] of a normal x and the value q of its code, in the units of x, at a multiple of the step."""
    if bits == 1:
        return np.sqrt(2 / np.pi), 1.0
    step, num = factor * GAUSSIAN_STEP[bits], 2**bits
    edges = np.concatenate([[-np.inf], (np.arange(1, num) - num / 2) * step, [np.inf]])
    value = (np.arange(num) - (num - 1) / 2) * step
    return (value * -np.diff(norm.pdf(edges))).sum(), (value**2 * np.diff(norm.cdf(edges))).sum()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_errors_and_norms_of_rotated_codes_are_those_of_normal_columns(bits):
    """Scaled so that <decoded, x> = |x|^2, a code leaves E[q^2] / E[x q]^2 - 1; its step is that of q over E[x q]."""
    product, square = normal_moments(bits)
    assert ROTATED_ERROR[bits] == pytest.approx(square / product**2 - 1, rel=2e-3)
    step = GAUSSIAN_STEP.get(bits, 2.0) / product       # codes of one bit lie two apart where q is -1 or 1
    assert ROTATED_NORM[bits] == pytest.approx(1 / step, rel=1e-3)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_steps_leave_a_normal_column_the_least_error(bits):
    product, square = normal_moments(bits)
    for factor in (0.97, 1.03):
        other_product, other_square = normal_moments(bits, factor)
        assert 1 - 2 * product + square < 1 - 2 * other_product + other_square


def test_variances_are_shares_of_beta_by_code():
    np.testing.assert_allclose(variance_factors((1, 2, 8)), [1, 1 / 9, 1 / 255**2])
    assert variance_factors((1, 2, 4, 8), "rotated").tolist() == [ROTATED_ERROR[bits] for bits in (1, 2, 4, 8)]
    assert variance_factors((8, 16), "rotated").tolist() == [ROTATED_ERROR[8], (2**16 - 1) ** -2.0]
    pairs = np.zeros(1, np.int64), np.zeros(1), np.zeros(1)
    problem = Problem(np.zeros(2, np.int64), np.array([3.0, 5.0]), np.array([4, 4]), *pairs, (2, 4), "rotated")
    np.testing.assert_array_equal(problem.group_variance, np.outer([3.0, 5.0], [ROTATED_ERROR[2], ROTATED_ERROR[4]]))
