"""Rescaled rows are the formula in float32, row by row, the same bits at every level and among any rows."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.errors import KernelError
from hpcgnn.ops.integer_rows import CodeTarget, Epilogue, LayerNorm, OwnPart, rescale

DIMS = (1, 3, 16, 33, 100)


def reals(rng, *shape):
    return rng.normal(0, 1, shape).astype(np.float32)


def everything(rng, n, dim, norm=False):
    """Sums and a rescaling that leaves nothing out."""
    sums, near, own = (rng.integers(-100, 100, (n, dim)) for _ in range(3))
    return sums.astype(np.int32), Epilogue(
        reals(rng, n), reals(rng, dim), reals(rng, dim), near.astype(np.int8), 0.25,
        OwnPart(own.astype(np.int32), reals(rng, n), reals(rng, dim)),
        LayerNorm(reals(rng, dim), reals(rng, dim), 1e-5) if norm else None, rectifies=True)


def formula(source, a):
    """The formula of ext/src/integer_rows.h in NumPy float32, without LayerNorm."""
    x = source.astype(np.float32)
    if a.near is not None:
        x = (source + a.near).astype(np.float32) + a.near.astype(np.float32) * np.float32(a.epsilon)
    x = x if a.row_scale is None else x * a.row_scale[:, None]
    x = x if a.column_scale is None else x * a.column_scale
    if a.own is not None:
        x = x + a.own.sums.astype(np.float32) * a.own.row_scale[:, None] * a.own.column_scale
    x = x if a.bias is None else x + a.bias
    return np.maximum(x, 0) if a.rectifies else x


def codes_of(values, step, limit):
    return np.sign(values) * np.minimum(np.floor(np.abs(values) / step + np.float32(0.5)), limit)


@pytest.mark.parametrize("dim", DIMS)
def test_values_and_codes_are_those_of_the_formula(simd, dim):
    rng = np.random.default_rng(dim)
    sums, rescaling = everything(rng, 37, dim)
    step, limit = rng.uniform(1, 9, 37).astype(np.float32), rng.integers(1, 256, 37).astype(np.float32)
    values, codes = np.empty((37, dim), np.float32), np.empty((37, dim), np.uint8)
    rescale(sums, rescaling, CodeTarget(codes, step, limit), values)
    np.testing.assert_array_equal(values, formula(sums, rescaling))
    np.testing.assert_array_equal(codes, codes_of(values, step[:, None], limit[:, None]))


@pytest.mark.parametrize("dim", DIMS)
def test_real_rows_become_signed_codes_of_one_step(simd, dim):
    rows = 30 * reals(np.random.default_rng(dim), 29, dim)
    codes = np.empty((29, dim), np.int8)
    rescale(rows, Epilogue(), CodeTarget(codes, np.full(1, 0.5, np.float32), np.full(1, 127, np.float32)))
    np.testing.assert_array_equal(codes, codes_of(rows, np.float32(0.5), np.float32(127)))
    assert codes.min() < 0 and (dim == 1 or np.abs(codes).max() > 60)


@pytest.mark.parametrize("dim", DIMS)
def test_normalized_rows_have_the_bits_of_every_level_and_of_any_company(simd, monkeypatch, dim):
    sums, rescaling = everything(np.random.default_rng(dim), 21, dim, norm=True)
    values, other = np.empty((21, dim), np.float32), np.empty((1, dim), np.float32)
    rescale(sums, rescaling, values=values)
    x = formula(sums, Epilogue(**{**vars(rescaling), "rectifies": False})).astype(np.float64)
    centered = x - x.mean(axis=1, keepdims=True)
    scaled = centered / np.sqrt((centered ** 2).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(values, np.maximum(scaled * rescaling.norm.weight + rescaling.norm.bias, 0), atol=2e-5)
    monkeypatch.setenv("HPCGNN_SIMD", "portable")
    for i in range(21):
        one = Epilogue(rescaling.row_scale[i:i + 1], rescaling.column_scale, rescaling.bias, rescaling.near[i:i + 1],
                       0.25, OwnPart(rescaling.own.sums[i:i + 1], rescaling.own.row_scale[i:i + 1],
                                     rescaling.own.column_scale), rescaling.norm, rectifies=True)
        rescale(sums[i:i + 1], one, values=other)
        assert other.tobytes() == values[i:i + 1].tobytes()


def numbers_around_codes(rng, step, num_rows, dim):
    """Values whose quotients lie on, just below and just above the half between two codes, and of any size."""
    middle = (rng.integers(0, 300, (num_rows, dim)) + 0.5) * step.astype(np.float64)[:, None]
    near = np.nextafter(middle.astype(np.float32), rng.choice([-np.inf, np.inf], middle.shape).astype(np.float32))
    anywhere = np.exp2(rng.uniform(-100, 20, middle.shape)) * np.maximum(step, 1e-30)[:, None]
    with np.errstate(over="ignore"):
        return np.choose(rng.integers(0, 3, middle.shape), [middle, near, anywhere]).astype(np.float32)


@pytest.mark.parametrize("low, high", [(-20, 5), (-58, 58), (-60, -60), (60, 60), (-126, -61), (61, 118)])
def test_codes_are_those_of_a_rounded_division(simd, low, high):
    """Steps within and beyond those that are divided by through their inverse; mantissas of all ones too."""
    rng = np.random.default_rng(high - low)
    step = np.exp2(rng.integers(low, high + 1, 400)).astype(np.float32)
    step[::2] *= rng.uniform(1, 2, 200).astype(np.float32) if low < high else 1
    step[1::4] = np.nextafter(step[1::4], np.float32(0)) if low < high else step[1::4]
    rows = numbers_around_codes(rng, step, 400, 400) * rng.choice([-1, 1], (400, 1)).astype(np.float32)
    codes, limit = np.empty(rows.shape, np.int8), np.full(400, 127, np.float32)
    rescale(rows, Epilogue(), CodeTarget(codes, step, limit))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(codes, codes_of(rows, step[:, None], limit[:, None]))
    assert (codes == 0).any() and (codes == 127).any()


def test_infinite_values_take_the_largest_code():
    codes = np.empty((1, 3), np.int8)
    rows = np.array([[np.inf, -np.inf, 1e38]], np.float32)
    rescale(rows, Epilogue(), CodeTarget(codes, np.full(1, 1e-3, np.float32), np.full(1, 7, np.float32)))
    assert codes.tolist() == [[7, -7, 7]]


@pytest.mark.parametrize("num_rows, dim", [(0, 5), (5, 0)])
def test_nothing_becomes_nothing(num_rows, dim):
    # The codes lie between others, which stay as they are.
    around, limit = np.full(12, 7, np.int8), np.ones(1, np.float32)
    codes = around[4:4 + num_rows * dim].reshape(num_rows, dim)
    rescale(np.empty((num_rows, dim), np.int32), Epilogue(), CodeTarget(codes, limit, limit))
    assert (around == 7).all()


@pytest.mark.parametrize("place", [(0, 0), (36, 32), (20, 15)])
def test_nan_and_values_below_zero_are_found_wherever_they_are(simd, place):
    ones, codes = np.ones(1, np.float32), np.empty((37, 33), np.uint8)
    for value, words in ((np.nan, "hold NaN"), (-1.0, "negative values, and their codes have no sign")):
        rows = np.ones((37, 33), np.float32)
        rows[place] = value
        with pytest.raises(KernelError, match=words):
            rescale(rows, Epilogue(), CodeTarget(codes, ones, ones))


@pytest.mark.parametrize("rescaling, words", [
    (Epilogue(row_scale=np.ones(3, np.float32)), "row_scale of integer rows is float32 of shape"),
    (Epilogue(column_scale=np.ones(5)), "column_scale of integer rows is float64"),
    (Epilogue(bias=np.ones((2, 5), np.float32)), "bias of integer rows"),
    (Epilogue(near=np.ones((2, 5), np.uint8)), "near of integer rows is uint8"),
    (Epilogue(own=OwnPart(np.ones((2, 4), np.int32), np.ones(2, np.float32), np.ones(5, np.float32))), "own sums"),
    (Epilogue(norm=LayerNorm(np.ones(4, np.float32), np.ones(5, np.float32), 0.1)), "norm weight"),
])
def test_what_does_not_fit_is_refused(rescaling, words):
    with pytest.raises(KernelError, match=words):
        rescale(np.ones((2, 5), np.int32), rescaling, values=np.empty((2, 5), np.float32))


def test_targets_that_do_not_fit_are_refused():
    rows, ones = np.ones((2, 5), np.float32), np.ones(2, np.float32)
    for target in (CodeTarget(np.empty((2, 4), np.int8), ones, ones),
                   CodeTarget(np.empty((2, 5), np.int16), ones, ones),
                   CodeTarget(np.empty((2, 5), np.int8), ones, ones[:1])):
        with pytest.raises(KernelError, match="of integer rows is"):
            rescale(rows, Epilogue(), target)
    with pytest.raises(KernelError, match="source of integer rows is float64"):
        rescale(rows.astype(np.float64), Epilogue(), values=np.empty((2, 5), np.float32))
