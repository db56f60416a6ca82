"""HalfGNN's half arithmetic against dense float64, and the overflows that it is made for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cuda.aggregation_cases import (
    NUM_COLUMNS,
    ROUNDING,
    assert_near,
    dense_of,
    matrix_of,
    multiply,
    packed_rows,
    rows_of,
    scales,
)

from hpcgnn.ops.aggregation import from_csr

BATCH = 16               # products that are summed in half precision
HALVES = [torch.bfloat16, torch.float16]
NUM_NEIGHBORS = 20_000


@pytest.fixture(params=[False, True], ids=["float32 sums", "half arithmetic"])
def has_half_sums(request):
    return request.param


@pytest.mark.covering
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [1, 3, 41, 64, 130])
def test_half_arithmetic_is_off_by_the_units_of_a_batch_at_most(device, dim, dtype):
    """Of each batch's sum of magnitudes: BATCH additions and the weight's own rounding, once each."""
    matrix = matrix_of(num_self=30, has_half_sums=True, **scales(matrix_of()))
    h = rows_of(NUM_COLUMNS, dim, dtype)
    found = multiply(matrix, h.to(device))
    assert_near(found, dense_of(matrix), h, dtype, rounding=(BATCH + 1) * ROUNDING[dtype])
    assert not torch.equal(found, multiply(replace(matrix, has_half_sums=False), h.to(device)))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("num_heads", [1, 3])
def test_weights_of_entries_are_mirrored_to_both_columns_of_a_pair(device, num_heads, dtype):
    matrix, h = matrix_of(has_half_sums=True), rows_of(NUM_COLUMNS, 5 * num_heads, dtype)
    weight = rows_of(len(matrix.indices), num_heads, seed=3)
    found = multiply(matrix, h.to(device), entry_scale=weight.to(device))
    for head in range(num_heads):
        columns = slice(5 * head, 5 * head + 5)
        of_entry = weight[:, head].double().numpy()
        magnitude = abs(dense_of(matrix, abs(of_entry))) @ abs(h[:, columns].double().numpy())
        exact = dense_of(matrix, of_entry) @ h[:, columns].double().numpy()
        bound = (BATCH + 3) * ROUNDING[dtype] * magnitude + 2.0**-20
        assert (abs(found[:, columns].double().cpu().numpy() - exact) <= bound).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [3, 64])
def test_packed_rows_are_decoded_into_half_arithmetic(device, dim, dtype):
    """A decoded value is rounded to the storage, which is one more unit."""
    matrix = matrix_of(split=35, num_self=30, has_half_sums=True, **scales(matrix_of()))
    near, (packed, far) = rows_of(35, dim, dtype), packed_rows(rows_of(NUM_COLUMNS - 35, dim, dtype, seed=2))
    found = multiply(matrix, near.to(device), packed=packed)
    assert_near(found, dense_of(matrix), torch.cat([near.float(), far]), dtype, rounding=(BATCH + 2) * ROUNDING[dtype])


def one_row(num_neighbors, **scaling):
    return from_csr(np.array([0, num_neighbors]), np.arange(num_neighbors, dtype=np.int32), num_neighbors, **scaling)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_mean_of_20_000_tens_is_ten(device, has_half_sums, dtype):
    """A float16 sum of tens is infinite after 6,551 of them: HalfGNN, Section 3.1.1."""
    matrix = one_row(NUM_NEIGHBORS, has_half_sums=has_half_sums, row_scale=np.array([1 / NUM_NEIGHBORS], np.float32))
    tens = torch.full((NUM_NEIGHBORS, 1), 10.0, dtype=dtype)
    assert (multiply(matrix, tens.to(device)) == 10).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_20_000_neighbors_under_the_norm_of_both_sides_are_finite_and_right(device, has_half_sums, dtype):
    """Leaves of degree 1 and a hub: 10 * 20,000 / sqrt(20,000) = 1,414."""
    scale = np.array([NUM_NEIGHBORS**-0.5], np.float32)
    matrix = one_row(NUM_NEIGHBORS, has_half_sums=has_half_sums, row_scale=scale,
                     column_scale=np.ones(NUM_NEIGHBORS, np.float32))
    tens = torch.full((NUM_NEIGHBORS, 1), 10.0, dtype=dtype)
    found = multiply(matrix, tens.to(device)).double().item()
    assert found == pytest.approx(10 * NUM_NEIGHBORS**0.5, rel=ROUNDING[dtype] + 1e-5)


def test_batches_are_scaled_before_they_overflow(device):
    """64 neighbors of 4,000 share a chunk: 16 of them are 64,000, all of them too many for float16."""
    matrix = one_row(64, has_half_sums=True, row_scale=np.array([1 / 64], np.float32))
    assert (multiply(matrix, torch.full((64, 64), 4000.0, dtype=torch.float16).to(device)) == 4000).all()


def test_float32_rows_are_summed_in_float32_whatever_is_chosen(device, has_half_sums):
    matrix, h = matrix_of(has_half_sums=has_half_sums), rows_of(NUM_COLUMNS, 41)
    assert_near(multiply(matrix, h.to(device)), dense_of(matrix), h, torch.float32)
