"""Products on the device against float64, in every storage, and sums over rows that no order of blocks changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cuda.conftest import both_orders

from hpcgnn.ops.cuda import dense
from hpcgnn.ops.cuda.dense import row_blocks

# Relative to the sum of magnitudes: float32 sums, and the result's own rounding.
BOUND = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
SHAPES = [(1, 1, 1), (5, 7, 3), (70, 41, 256), (900, 16, 8), (0, 4, 3)]


def matrices(storage, *shapes):
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.normal(size=shape)).to(storage) for shape in shapes]


def assert_near(found, left, right, storage, start=None):
    left, right = left.double().cpu(), right.double().cpu()
    exact, scale = left @ right, left.abs() @ right.abs()
    if start is not None:
        exact, scale = exact + start.double(), scale + start.double().abs()
    assert ((found.double().cpu() - exact).abs() <= 2 * BOUND[storage] * scale + 1e-30).all()


@pytest.mark.covering
@pytest.mark.parametrize("storage", list(BOUND))
@pytest.mark.parametrize("shape", SHAPES)
def test_products_equal_those_of_float64(device, storage, shape):
    n, in_dim, out_dim = shape
    rows, gradient, weight = (matrix.to(device) for matrix in matrices(storage, (n, in_dim), (n, out_dim),
                                                                       (out_dim, in_dim)))
    mapped, back = dense.map_rows(rows, weight, None), dense.map_back(gradient, weight, None)
    assert mapped.dtype == back.dtype == storage
    assert_near(mapped, rows, weight.t(), storage)
    assert_near(back, gradient, weight, storage)
    total = dense.weight_gradient(gradient, rows)
    assert total.dtype == torch.float32 and total.shape == (out_dim, in_dim)
    assert_near(total, gradient.t(), rows, torch.float32)


@pytest.mark.parametrize("storage", list(BOUND))
@pytest.mark.parametrize("in_place", [False, True])
def test_both_sides_of_a_convolution_and_the_bias_are_summed(device, storage, in_place):
    rows, own, weight, own_weight = matrices(storage, (900, 5), (900, 7), (5, 5), (5, 7))
    bias, = matrices(torch.float32, (5,))
    here = rows.to(device, copy=True)
    found = dense.combine(here, weight.to(device), own.to(device), own_weight.to(device), bias.to(device),
                          here if in_place else None)
    assert (found is here) == in_place
    left, right = torch.cat([rows, own], 1), torch.cat([weight, own_weight], 1)
    assert_near(found, left, right.t(), storage, bias.expand(900, 5))


@pytest.mark.parametrize("storage", list(BOUND))
def test_a_product_is_added_in_place(device, storage):
    rows, gradient, weight, out, back = matrices(storage, (900, 5), (900, 3), (3, 5), (900, 3), (900, 5))
    for product, left, right, start in ((dense.map_rows, rows, weight.t(), out),
                                        (dense.map_back, gradient, weight, back)):
        target = start.to(device, copy=True)
        assert product(left.to(device), weight.to(device), target) is target
        assert_near(target, left, right, storage, start)


def test_float16_rows_are_summed_in_float32(device):
    """A float16 sum of 4,096 ones sticks at 2,048, and one of 100,000 is no float16."""
    ones = torch.ones(100_000, 4, dtype=torch.float16, device=device)
    long = ones[:8192].view(8, 4096)
    assert (dense.map_rows(long, long[:2], None) == 4096).all()
    assert (dense.weight_gradient(ones, ones) == 100_000).all()


@pytest.mark.parametrize("has_before", [True, False])
def test_settings_of_torch_are_left_as_they_were(device, monkeypatch, has_before):
    names = ["allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"]
    settings, seen = torch.backends.cuda.matmul, []
    before = [getattr(settings, name) for name in names]
    monkeypatch.setattr(torch, "addmm", lambda *a, **k: seen.extend(getattr(settings, name) for name in names))
    try:
        for name in names:
            setattr(settings, name, has_before)
        matrix = torch.ones(2, 2, device=device)
        dense.map_rows(matrix, matrix, matrix)
        assert seen == [False, False] and [getattr(settings, name) for name in names] == [has_before] * 2
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(settings, name, value)


@pytest.mark.covering
@pytest.mark.parametrize("storage", list(BOUND))
@pytest.mark.parametrize("shape", [(1, 1), (513, 41), (700, 256), (300, 300), (5, 1000), (1300, 3), (0, 5), (5, 0)])
def test_column_sums_equal_those_of_float64(device, storage, shape):
    """A value is added at most n / 512 + 257 times within its block of rows, and its block's sum at most 258 times."""
    rows = matrices(storage, shape)[0]
    found = dense.column_sums(rows.to(device))
    assert found.dtype == torch.float32 and found.shape == shape[1:]
    bound = (shape[0] / 512 + 515) * 2.0**-24 * rows.double().abs().sum(0)
    assert ((found.double().cpu() - rows.double().sum(0)).abs() <= bound).all()


@both_orders
def test_column_sums_have_the_same_bits_in_any_order_of_blocks(device, first_results):
    rows = matrices(torch.float32, (1500, 70))[0].to(device)
    found = dense.column_sums(rows).cpu().numpy().tobytes()
    assert found == first_results.setdefault("sums", found) == dense.column_sums(rows).cpu().numpy().tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (513, 41), (0, 5), (5, 0)])
def test_column_magnitudes_equal_those_of_the_host(device, shape):
    rows = matrices(torch.float32, shape)[0]
    found = dense.column_magnitudes(rows.to(device)).cpu()
    torch.testing.assert_close(found, rows.double().abs().sum(0), rtol=1e-13, atol=0)


@pytest.mark.parametrize("num_rows", [1, 256, 257, 131_072, 131_073, 10_000_000])
def test_blocks_of_a_sum_hold_all_rows_and_no_block_is_empty(num_rows):
    rows_a_block, num_blocks = row_blocks(num_rows)
    assert (num_blocks - 1) * rows_a_block < num_rows <= num_blocks * rows_a_block and num_blocks <= 512
