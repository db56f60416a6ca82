"""The oracles themselves, against published vectors and by definition."""

from __future__ import annotations

import numpy as np
import pytest
from reference import bf16_down, bf16_up, bf16_value, pack, philox4x32, quantize

# Random123, tests/kat_vectors, philox4x32 10: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize("counter, key, output", KNOWN_ANSWERS)
def test_philox_gives_the_published_vectors(counter, key, output):
    np.testing.assert_array_equal(philox4x32(words(counter), words(key)), words(output))


def test_bf16_bounds_are_the_nearest_on_each_side():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=4000), [0.0, 1.0, -1.0, 1e-40, -1e-40, 1.6e38, -1.6e38]]).astype(np.float32)
    halves = np.arange(1 << 16, dtype=np.uint16)
    values = np.unique(bf16_value(halves)[np.isfinite(bf16_value(halves))])
    below = values[np.searchsorted(values, x, side="right") - 1]
    np.testing.assert_array_equal(bf16_value(bf16_down(x)), below)
    exact = np.abs(x).astype(np.float64) * (1 + rng.choice([-1e-9, 0, 1e-9], len(x)))
    np.testing.assert_array_equal(bf16_value(bf16_up(exact)), values[np.searchsorted(values, exact, side="left")])


def test_packing_puts_the_first_code_in_the_low_bits():
    assert pack(np.array([[1, 2, 3, 0, 1]], np.uint8), 2).tolist() == [[0b00111001, 0b01]]
    assert pack(np.array([[1, 0, 0, 0, 0, 0, 0, 1, 1]], np.uint8), 1).tolist() == [[0x81, 0x01]]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("offset, spread", [(0.0, 1.0), (3.0, 0.0), (20.3, 1e-6), (20.0, 0.5), (-7.7, 0.01)])
def test_expectation_over_all_draws_is_the_input(bits, offset, spread):
    """Over all 65536 draws the mean code differs from (x - zero_point) / step by at most 2^-17 + 2^bits * 2^-22.

    2^-17 is half the spacing of the draws. The rest bounds float32: four roundings of numbers of up to 2^bits steps,
    each by at most 2^-24 of that, are one 2^-22.
    """
    rows = (offset + spread * np.random.default_rng(bits).uniform(-1, 1, (1, 9))).astype(np.float32)
    draws = np.repeat(np.arange(1 << 16, dtype=np.uint16)[:, None], 9, axis=1)
    codes, zero_point, step = quantize(np.repeat(rows, len(draws), axis=0), bits, draws)
    zero, width = bf16_value(zero_point[0]).astype(np.float64), bf16_value(step[0]).astype(np.float64)
    expected = (rows[0] - zero) / width if width else np.zeros(9)
    assert np.abs(codes.mean(axis=0) - expected).max() <= 2.0**-17 + 2.0 ** (bits - 22)
