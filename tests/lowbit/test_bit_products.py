"""Products of BitTensors and of bit tiles against float64 products of what the codes stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.lowbit import (
    BitTiles,
    aggregate_bits,
    aggregate_to_bit,
    aggregate_to_float,
    bit_mm_to_bit,
    bit_mm_to_float,
    bit_mm_to_int,
    to_bit,
)

TOLERANCE = 1e-5    # float32, relative to the sum of magnitudes


def values_of(shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def adjacency_of(num_rows, num_columns, density=0.05, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random((num_rows, num_columns)) < density)


def sides(m, k, n, left_width, right_width, **how):
    return to_bit(values_of((m, k)), left_width, **how), to_bit(values_of((k, n), 1), right_width, "row", **how)


def assert_near(actual, a, b, gain=None, bias=None, relu=False):
    """Against the float64 product, within float32's rounding of a sum of products, corrections and all."""
    a, b = a.double(), b.double()
    expected, magnitude = a @ b, a.abs() @ b.abs() + a.shape[1] * a.abs().max() * b.abs().max()
    if gain is not None:
        expected, magnitude = expected * gain.double(), magnitude * gain.double().abs()
    if bias is not None:
        expected, magnitude = expected + bias.double(), magnitude + bias.double().abs()
    expected = expected.clamp(min=0) if relu else expected
    assert ((actual.double() - expected).abs() <= TOLERANCE * magnitude).all()


@pytest.mark.covering
@pytest.mark.parametrize("left_width", [1, 2, 3, 8])
@pytest.mark.parametrize("right_width", [1, 4, 5, 8])
@pytest.mark.parametrize("shape", [(5, 7, 3), (40, 130, 33)])
def test_integer_products_are_those_of_the_codes(left_width, right_width, shape):
    a, b = sides(*shape, left_width, right_width)
    expected = a.to_codes().numpy().astype(np.int64) @ b.to_codes().numpy().astype(np.int64)
    sums = bit_mm_to_int(a, b)
    assert sums.dtype == torch.int32 and np.array_equal(sums, expected)


@pytest.mark.covering
@pytest.mark.parametrize("widths", [(1, 1), (2, 5), (8, 8)])
@pytest.mark.parametrize("rounding", ["floor", "nearest"])
@pytest.mark.parametrize("is_per_line", [False, True])
def test_real_products_follow_from_integers_and_sums_of_codes(simd, widths, rounding, is_per_line):
    a, b = sides(30, 140, 20, *widths, rounding=rounding, is_per_line=is_per_line)
    assert_near(bit_mm_to_float(a, b), a.to_val(), b.to_val())


@pytest.mark.parametrize("relu", [False, True])
def test_gain_bias_and_relu_are_folded_into_the_product(relu):
    a, b = sides(30, 140, 20, 4, 4)
    gain, bias = values_of(20, 5), values_of(20, 6)
    assert_near(bit_mm_to_float(a, b, gain=gain, bias=bias, relu=relu), a.to_val(), b.to_val(), gain, bias, relu)


@pytest.mark.covering
@pytest.mark.parametrize("packing", ["column", "row"])
@pytest.mark.parametrize("bit_width", [1, 3, 8])
@pytest.mark.parametrize("rounding", ["floor", "nearest"])
def test_a_fused_product_has_the_codes_of_the_real_one(simd, packing, bit_width, rounding):
    a, b = sides(37, 140, 21, 3, 5)
    how = {"gain": values_of(21, 5), "bias": values_of(21, 6), "relu": True}
    values = bit_mm_to_float(a, b, **how)
    ends = {"low": 0.0, "high": values.max().item(), "rounding": rounding}
    fused, apart = bit_mm_to_bit(a, b, bit_width, packing, **ends, **how), to_bit(values, bit_width, packing, **ends)
    assert torch.equal(fused.words, apart.words) and fused.shape == apart.shape == (37, 21)
    assert torch.equal(fused.step, apart.step) and torch.equal(fused.zero_point, apart.zero_point)


@pytest.mark.parametrize("packing", ["column", "row"])
def test_without_a_range_a_product_takes_its_own(packing):
    a, b = sides(12, 50, 9, 3, 3)
    expected = to_bit(bit_mm_to_float(a, b), 4, packing)
    found = bit_mm_to_bit(a, b, 4, packing)
    assert torch.equal(found.words, expected.words) and torch.equal(found.step, expected.step)


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
def test_empty_products(shape):
    m, k, n = shape
    a, b = to_bit(torch.ones(m, k), 2), to_bit(torch.ones(k, n), 3, "row")
    assert bit_mm_to_int(a, b).shape == (m, n) and not bit_mm_to_int(a, b).any()
    assert torch.equal(bit_mm_to_float(a, b), torch.full((m, n), 0.0))
    for packing in ("column", "row"):
        assert bit_mm_to_bit(a, b, 2, packing, low=0.0, high=1.0).shape == (m, n)


@pytest.mark.covering
@pytest.mark.parametrize("is_dense, jump", [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("bit_width", [1, 4, 8])
def test_aggregation_by_bits_is_exact_and_counts_its_tiles(is_dense, jump, reuse, bit_width):
    adjacency = adjacency_of(70, 700, 0.01)
    features = to_bit(values_of((700, 40)), bit_width, "row")
    tiles = BitTiles.from_matrix(adjacency, is_dense)
    sums, num_multiplied, num_jumped = aggregate_bits(tiles, features, jump=jump, reuse=reuse)
    assert np.array_equal(sums, adjacency.numpy().astype(np.int64) @ features.to_codes().numpy().astype(np.int64))
    assert num_multiplied + num_jumped == 9 * 6
    assert num_jumped == (tiles.num_zero_tiles if jump else 0)


@pytest.mark.parametrize("rounding", ["floor", "nearest"])
@pytest.mark.parametrize("is_mean", [False, True])
def test_aggregated_values_follow_from_sums_and_degrees(simd, rounding, is_mean):
    adjacency, features = adjacency_of(70, 300), to_bit(values_of((300, 20)), 5, "row", rounding=rounding)
    scale = 1 / adjacency.sum(1).clamp(min=1) if is_mean else None
    tiles = BitTiles.from_matrix(adjacency, row_scale=scale)
    weights = adjacency * (scale[:, None] if is_mean else 1)
    bias = values_of(20, 3)
    out = aggregate_to_float(tiles, features, bias=bias, relu=True)
    assert_near(out.result, weights, features.to_val(), bias=bias, relu=True)


def test_fused_aggregation_has_the_codes_of_the_real_one(simd):
    adjacency, features = adjacency_of(70, 300), to_bit(values_of((300, 20)), 5, "row")
    tiles = BitTiles.from_matrix(adjacency)
    values = aggregate_to_float(tiles, features, relu=True).result
    fused = aggregate_to_bit(tiles, features, 4, low=0.0, high=values.max().item(), relu=True).result
    own = aggregate_to_bit(tiles, features, 4, relu=True).result
    assert torch.equal(fused.words, to_bit(values, 4, low=0.0).words)
    assert torch.equal(own.words, to_bit(values, 4).words)


def test_isolated_nodes_and_graphs_without_edges_aggregate_to_zero():
    features = to_bit(values_of((40, 5)), 3, "row")
    out, num_multiplied, num_jumped = aggregate_to_float(BitTiles.from_matrix(torch.zeros(40, 40)), features)
    assert not out.any() and (num_multiplied, num_jumped) == (0, 5)


def call(function, a, b, *more):
    return lambda: function(a, b, *more)


LEFT, RIGHT = to_bit(torch.ones(3, 4), 2), to_bit(torch.ones(4, 5), 2, "row")


@pytest.mark.parametrize("make, complaint", [
    (call(bit_mm_to_int, RIGHT, RIGHT), "a left side packed by 'column' and a right side packed by 'row', found 'row'"),
    (call(bit_mm_to_int, LEFT, to_bit(torch.ones(5, 2), 2, "row")), "contracts 4 columns .* with 5 rows"),
    (call(bit_mm_to_bit, LEFT, RIGHT, 2, "up"), "packing is 'up'"),
    (lambda: bit_mm_to_bit(LEFT, RIGHT, 9, low=0.0, high=1.0), "a bit-width is 9"),
    (lambda: bit_mm_to_bit(LEFT, RIGHT, 2, low=1.0, high=0.0), "runs from 1 to 0"),
    (lambda: bit_mm_to_float(LEFT, RIGHT, bias=torch.ones(3)), "5 columns needs a bias .* of shape"),
    (lambda: bit_mm_to_float(LEFT, RIGHT, gain=torch.ones(5).double()), "a gain of 5 float32 values"),
    (lambda: aggregate_bits(BitTiles.from_matrix(torch.ones(2, 3)), LEFT), "features packed by 'row', found 'column'"),
    (lambda: aggregate_bits(BitTiles.from_matrix(torch.ones(2, 4)), RIGHT, jump=False), "dense form"),
    (lambda: BitTiles.from_matrix(torch.ones(2, 4), row_scale=torch.ones(3)), "2 rows need 2 float32 scales"),
])
def test_sides_that_do_not_fit_are_refused(make, complaint):
    with pytest.raises(KernelError, match=complaint):
        make()
