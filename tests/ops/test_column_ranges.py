"""Sums by ranges of columns have the bits of whole sums."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from hpcgnn.ops import arena, column_ranges
from hpcgnn.ops.aggregation import from_csr, multiply
from hpcgnn.ops.column_ranges import columns_at_once, cut, join, product
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.evictions import columns_of_a_range, row_bytes_that_fit
from hpcgnn.ops.pointwise import drop

TYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def room(monkeypatch):
    """Sets how many bytes of a row a sum may have in memory."""
    return lambda row_bytes: monkeypatch.setattr(column_ranges, "row_bytes_at_once", lambda: row_bytes)


@pytest.mark.parametrize("row_bytes, dim, item_bytes, expected", [
    (None, 256, 4, 256), (1024, 256, 4, 256), (1023, 256, 4, 128),
    (400, 256, 4, 88), (200, 256, 2, 88),      # 88, 88 and 80, and not 96, 96 and 64
    (170, 256, 2, 64),                         # at most 80 columns, four ranges: 64 each
    (8, 40, 4, 8), (0, 10, 4, 8), (0, 5, 4, 5)])      # never fewer than 8 of more
def test_the_width_of_a_range(row_bytes, dim, item_bytes, expected):
    assert columns_of_a_range(row_bytes, dim, item_bytes) == expected


def test_rows_that_fit_count_both_tables_the_sums_and_the_messages():
    # Inner rows and their sums, halo rows and the message that brings them, and the message that leaves.
    assert row_bytes_that_fit(4000.0, num_inner=10, num_halo=5, num_sent=10) == 4000 * 3 / 4 / 40
    assert row_bytes_that_fit(1.0, 0, 0, 0) == 0


@pytest.mark.parametrize("width", [1, 16, 40])
def test_ranges_are_copies_of_all_columns(width):
    rows = torch.arange(20 * 40.0).view(20, 40)
    ranges = cut(rows, width)
    assert [one.first for one in ranges] == list(range(0, 40, width))
    assert all(torch.equal(one.rows, rows[:, one.first:one.first + width]) for one in ranges)
    assert all(one.rows.is_contiguous() and one.rows.data_ptr() != rows.data_ptr() for one in ranges)
    assert torch.equal(join(ranges, torch.full((20, 40), torch.nan)), rows) and not ranges


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("first, stop", [(0, 40), (8, 40), (16, 32), (64, 150), (136, 150)])
def test_a_range_has_the_mask_of_the_whole_row(simd, dtype, first, stop):
    rows, node_id = torch.randn(30, 150).to(dtype), np.arange(7, 37) * 3
    key = CounterKey(1, 2, DROPOUT, 3)
    part = drop(rows[:, first:stop].contiguous(), 0.4, node_id, key, first_column=first)
    assert torch.equal(part, drop(rows, 0.4, node_id, key)[:, first:stop])
    assert 0 < (part == 0).sum() < part.numel()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("has_far", [False, True])
def test_sums_by_ranges_have_the_bits_of_whole_sums(room, dtype, has_far):
    rng = np.random.default_rng(0)
    entries = scipy.sparse.random(50, 90, 0.2, "csr", np.float32, rng)
    matrix = from_csr(entries.indptr.astype(np.int64), entries.indices.astype(np.int32), 90, entry_scale=entries.data)
    rows = torch.randn(90, 70).to(dtype)
    near, far = (rows[:60].contiguous(), rows[60:].contiguous()) if has_far else (rows, None)
    expected = multiply(matrix, near, far)
    room(20 * rows.itemsize)
    assert columns_at_once(rows) == 16 and torch.equal(product(matrix, near, far), expected)
    room(70 * rows.itemsize)
    assert columns_at_once(rows) is None and torch.equal(product(matrix, near, far), expected)


def test_without_a_limit_all_columns_are_summed_at_once():
    assert arena.row_bytes_at_once() is None and columns_at_once(torch.empty(3, 1 << 12)) is None
