"""Other formats hold the same rows in as many bits as is said; and what features become before they are packed."""

from __future__ import annotations

import numpy as np
import pytest
from reference_package import ideal_bits, positions_of, stream_of

from hpcgnn.errors import ConfigError
from hpcgnn.lowbit.formats import (
    BITMAP,
    COO,
    CSR,
    DENSE,
    IDEAL,
    PACKAGE,
    address_bits,
    fixed_sizes,
    sizes,
)
from hpcgnn.lowbit.package import PackageFormat, encode
from hpcgnn.lowbit.package_features import check_feature_bits, quantize_features

FORMATS = (DENSE, BITMAP, CSR, COO)
UNSIGNED, SIGNED = PackageFormat(), PackageFormat(is_signed=True)


def random_codes(shape, density, form, width=5, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(1, form.max_code(width) + 1, shape) * (rng.random(shape) < density)
    return (codes * rng.choice([-1, 1], shape) if form.is_signed else codes).astype(form.dtype)


@pytest.mark.parametrize("num_rows, dim, num_values, bit_width, expected", [
    (1, 4, 2, 2, {DENSE: (8, 0), BITMAP: (4, 4), CSR: (4, 2 * 2 + 2 * 2), COO: (4, 2 * (0 + 2))}),
    (13, 9, 30, 5, {DENSE: (585, 0), BITMAP: (150, 117), CSR: (150, 14 * 5 + 30 * 4), COO: (150, 30 * (4 + 4))}),
    (0, 4, 0, 5, {DENSE: (0, 0), BITMAP: (0, 0), CSR: (0, 0), COO: (0, 0)})])
def test_formats_of_one_width_take_the_bits_of_values_and_of_their_places(num_rows, dim, num_values, bit_width,
                                                                          expected):
    """CSR stores where each row ends and each value's column, COO each value's row and column."""
    found = fixed_sizes(num_rows, dim, num_values, bit_width)
    assert {name: (size.value_bits, size.position_bits) for name, size in found.items()} == expected


def test_places_take_the_bits_of_the_largest():
    assert [address_bits(count) for count in (0, 1, 2, 3, 1024, 1025)] == [0, 0, 1, 2, 10, 11]


@pytest.mark.parametrize("form", [UNSIGNED, SIGNED])
def test_sizes_are_those_counted_by_hand(form):
    codes = random_codes((50, 24), 0.4, form, width=3)
    widths = np.where(np.arange(50) < 30, 3, 6)
    found = sizes(encode(codes, widths, form))
    assert found[IDEAL].bits == ideal_bits(codes.tolist(), widths.tolist())
    stream = stream_of(codes.tolist(), widths.tolist(), signed=form.is_signed)
    assert found[PACKAGE].value_bits == -(-len(stream) // 8) * 8
    positions = positions_of(codes.tolist())[0]
    assert found[PACKAGE].position_bits == -(-len(positions) // 8) * 8 + 64 + 32 + 64, "and one entry of the index"
    assert found[BITMAP].position_bits == 50 * 24
    assert found[DENSE].bits == 50 * 24 * 6
    assert found[BITMAP].value_bits == found[CSR].value_bits == 6 * np.count_nonzero(codes)


def mixed_rows(num_rows):
    """MEGA's mix: 2 and 3 bits for most nodes, 1 or 8 for few; 128 columns, half of them zero, as after ReLU."""
    rng = np.random.default_rng(0)
    widths = rng.choice([1, 2, 3, 8], num_rows, p=[0.1, 0.45, 0.4, 0.05])
    codes = (rng.integers(0, 255, (num_rows, 128)) % (2**widths - 1)[:, None] + 1) * (rng.random((num_rows, 128)) < 0.5)
    return codes.astype(np.uint8), widths


@pytest.mark.parametrize("is_sorted, low, high", [(False, 1.10, 1.20), (True, 1.02, 1.03)])
def test_packages_are_the_smallest_format_and_nearest_the_ideal_where_rows_lie_by_width(is_sorted, low, high):
    """Padding is paid where the width changes; headers, 5 bits in 197, everywhere."""
    codes, widths = mixed_rows(2000)
    order = np.argsort(widths, kind="stable") if is_sorted else np.arange(2000)
    found = sizes(encode(codes[order], widths[order]))
    assert low < found[PACKAGE].value_bits / found[IDEAL].bits < high
    assert found[PACKAGE].bits < min(found[name].bits for name in FORMATS)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("value", [1.0, 1 / 7, 0.3, 1e-30, 3e38])
def test_features_of_one_magnitude_lose_nothing_and_take_one_bit(bits, value):
    rows = (np.random.default_rng(0).random((40, 30)) < 0.2).astype(np.float32) * np.float32(value)
    codes, scale, width = quantize_features(rows, bits, UNSIGNED)
    np.testing.assert_array_equal(codes * scale[:, None], rows)
    assert (width[rows.any(axis=1)] == 1).all() and codes.dtype == np.uint8


def test_signs_take_a_second_bit_and_lose_nothing():
    rows = np.random.default_rng(0).integers(-1, 2, (40, 30)).astype(np.float32)
    codes, scale, width = quantize_features(rows, 8, SIGNED)
    np.testing.assert_array_equal(codes * scale[:, None], rows)
    assert (width == 2).all() and codes.dtype == np.int8


def test_counts_take_the_bits_of_the_largest_count():
    rows = np.array([[0, 2, 4, 10], [0, 0, 3, 3], [1, 255, 0, 0], [2, 3, 4, 5]], np.float32)
    codes, scale, width = quantize_features(rows, 8, UNSIGNED)
    np.testing.assert_array_equal(scale[:3], [2, 3, 1])
    np.testing.assert_array_equal(width, [3, 1, 8, 8])
    np.testing.assert_array_equal(codes[:3] * scale[:3, None], rows[:3])


@pytest.mark.parametrize("form, fewest", [(UNSIGNED, 1), (SIGNED, 2)])
def test_other_features_are_off_by_half_a_step_at_most(form, fewest):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(60, 50)).astype(np.float32) * 10.0 ** rng.integers(-20, 20, (60, 1)).astype(np.float32)
    rows = rows if form.is_signed else np.abs(rows)
    for bits in range(fewest, 9):
        codes, scale, width = quantize_features(rows, bits, form)
        assert (width == bits).all() and np.abs(codes.astype(int)).max() == form.max_code(bits)
        assert (np.abs(codes * scale[:, None] - rows) <= 0.5001 * scale[:, None]).all()
        np.testing.assert_allclose(scale, np.abs(rows).max(axis=1) / form.max_code(bits), rtol=1e-6)


def test_rounding_is_that_of_mega():
    """Eq. 2 by hand, at a scale of 1: floor(|x| + 0.5), no more than 2**(b - 1) - 1."""
    codes, scale, _ = quantize_features(np.array([[7.0, 0.49, -0.5, 2.5, -3.2]], np.float32), 4, SIGNED)
    assert (scale.tolist(), codes.tolist()) == ([1.0], [[7, 0, -1, 3, -3]])


@pytest.mark.parametrize("largest", [np.float32(1e-45), np.finfo(np.float32).max, np.float32(1e-38)])
def test_extreme_rows_stay_finite_and_do_not_vanish(largest):
    rows = np.array([[largest, largest / 3, 0]], np.float32)
    for bits in range(1, 9):
        codes, scale, width = quantize_features(rows, bits, UNSIGNED)
        back = codes * scale[:, None]
        assert (abs(back.astype(np.float64) - rows) <= 0.5 * scale.astype(np.float64)).all()
        assert back[0, 0] > 0 and 1 <= width[0] <= bits


def test_no_rows_no_columns_and_rows_of_zeros_are_taken():
    for shape in ((0, 4), (3, 0), (3, 4)):
        codes, scale, width = quantize_features(np.zeros(shape, np.float32), 4, UNSIGNED)
        assert codes.shape == shape and not codes.any() and not scale.any() and len(width) == shape[0]


@pytest.mark.parametrize("bits, signed, message", [
    (0, False, "--feature-bits is 0; expected 1 to 8"), (9, False, "expected 1 to 8"),
    (1, True, "--feature-bits is 1; negative features need one bit for the sign; expected 2 to 8")])
def test_bits_out_of_range_are_refused(bits, signed, message):
    with pytest.raises(ConfigError, match=message):
        check_feature_bits(bits, signed)
