"""Rows of a pair in groups, and widths back to rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn.errors import KernelError
from hpcgnn.methods.solving import group_rows, group_sums, row_widths


@given(beta=st.lists(st.floats(0, 1e30), max_size=40), group_size=st.integers(1, 12))
def test_groups_hold_each_row_once_in_ascending_beta(beta, group_size):
    beta = np.array(beta, np.float64)
    order, starts = group_rows(beta, group_size)
    assert sorted(order.tolist()) == list(range(len(beta)))
    assert (np.diff(beta[order]) >= 0).all()
    assert starts[0] == 0 and starts[-1] == len(beta) and len(starts) == -(-len(beta) // group_size) + 1
    sizes = np.diff(starts)
    assert (sizes[:-1] == group_size).all() and (sizes[-1:] == len(beta) - group_size * (len(sizes) - 1)).all()
    sums = group_sums(beta, order, starts)
    assert sums == pytest.approx([beta[order[low:high]].sum() for low, high in itertools.pairwise(starts)])


def test_equal_betas_keep_their_order_so_that_both_sides_agree():
    order, _ = group_rows(np.array([2.0, 1.0, 2.0, 1.0]), 2)
    assert order.tolist() == [1, 3, 0, 2]


def test_each_row_gets_its_groups_width():
    order, starts = group_rows(np.array([5.0, 1.0, 3.0, 2.0, 4.0]), 2)
    assert row_widths(np.array([2, 4, 8], np.uint8), order, starts).tolist() == [8, 2, 4, 2, 4]
    assert row_widths(np.zeros(0, np.uint8), *group_rows(np.zeros(0), 3)).shape == (0,)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_beta_that_is_no_variance_is_refused(bad):
    with pytest.raises(KernelError, match="beta is negative or not finite"):
        group_rows(np.array([1.0, bad]), 2)
