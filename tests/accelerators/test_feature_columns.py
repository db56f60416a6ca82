"""Columns for values of which only the number is known."""

from __future__ import annotations

import numpy as np
from accelerator_workloads import random_counts
from hypothesis import given, settings
from hypothesis import strategies as st


@given(st.integers(0, 2**32), st.integers(0, 20), st.integers(1, 30), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@settings(max_examples=50, deadline=None)
def test_each_slice_of_a_row_has_its_count_in_distinct_columns(seed, num_rows, dim, density):
    rows = random_counts(np.random.default_rng(seed), num_rows, dim, density)
    row, column = rows.spread_columns(0, num_rows)
    bounds = rows.slice_bounds
    assert (np.diff(row) >= 0).all()
    for v in range(num_rows):
        own = column[row == v]
        assert len(set(own.tolist())) == len(own)
        for index in range(4):
            within = (own >= bounds[index]) & (own < bounds[index + 1])
            assert within.sum() == rows.nonzeros[v, index]


def test_a_run_of_rows_has_the_columns_that_it_has_among_all():
    rows = random_counts(np.random.default_rng(1), 12, 17, 0.4)
    row, column = rows.spread_columns(0, 12)
    assert np.array_equal(np.stack(rows.spread_columns(5, 9)), np.stack([row, column])[:, (row >= 5) & (row < 9)])


def test_no_column_is_much_more_frequent_than_another():
    rows = random_counts(np.random.default_rng(2), 4000, 40, 0.2)
    frequency = np.bincount(rows.spread_columns(0, 4000)[1], minlength=40)
    assert frequency.min() > 600 and frequency.max() < 1000


def test_values_before_a_column_grow_evenly_within_a_slice():
    rows = random_counts(np.random.default_rng(3), 6, 11, 0.7)      # slices of 3, 3, 3 and 2 columns
    before = rows.nonzeros_before(rows.nonzeros, np.arange(12))
    for v in range(6):
        for column in range(12):
            expected = sum(int(rows.nonzeros[v, s]) * min(max(column - 3 * s, 0), (3, 3, 3, 2)[s]) // (3, 3, 3, 2)[s]
                           for s in range(4))
            assert before[v, column] == expected
    assert (before[:, 11] == rows.row_nonzeros()).all() and not before[:, 0].any()
