"""What benchmarks leave out of SpMM and SDDMM changes no product: in small whole numbers every sum is exact."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda.aggregation_cases import dense_of, matrix_of

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements.ablations import sddmm_ablations, spmm_ablations

SPMM, SDDMM = ("pairs a lane", "atomic writes", "a warp a row"), ("half2", "half4")


def whole_numbers(num_rows, dim, dtype, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(-1, 2, (num_rows, dim)).astype(np.float32)).to(dtype)


@pytest.mark.covering
@pytest.mark.parametrize("name", SPMM)
@pytest.mark.parametrize("dim", [8, 64, 136])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_ablation_of_spmm_has_the_exact_sums(device, dtype, dim, name):
    # A hub of 700 entries goes over several blocks; scales are powers of two.
    matrix = matrix_of(row_scale=(2.0 ** -(np.arange(40) % 3)).astype(np.float32))
    rows = whole_numbers(matrix.num_columns, dim, dtype)
    found = spmm_ablations(matrix, rows.to(device))[name]()
    assert (found.dtype, found.shape) == (dtype, (40, dim))
    np.testing.assert_array_equal(found.cpu().double().numpy(), dense_of(matrix) @ rows.double().numpy())


@pytest.mark.parametrize("name", SDDMM)
def test_every_ablation_of_sddmm_has_the_exact_products(device, name):
    matrix = matrix_of()
    left, right = whole_numbers(40, 72, torch.float16), whole_numbers(matrix.num_columns, 72, torch.float16, 1)
    found = sddmm_ablations(matrix, left.to(device), right.to(device))[name]().cpu().numpy()
    products = left.double().numpy() @ right.double().numpy().T
    for v in range(40):
        entries = slice(matrix.begin[v], matrix.end[v])
        np.testing.assert_array_equal(found[entries, 0], products[v, matrix.indices[entries]])


def test_storages_without_kernels_have_no_ablations():
    rows = torch.zeros(60, 8, dtype=torch.bfloat16)
    assert spmm_ablations(matrix_of(), rows) == {} and sddmm_ablations(matrix_of(), rows, rows) == {}
    assert spmm_ablations(matrix_of(), torch.zeros(60, 6)) == {}      # rows that are no whole vectors
