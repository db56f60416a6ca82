"""Codes times weight codes: every way gives the integers of int64, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops import combination
from hpcgnn.ops.combination import WAYS, Rates, cheapest_way, combine

WIDTHS = range(1, 9)
SHAPES = [(1, 1, 1), (5, 7, 3), (9, 129, 17), (33, 300, 70), (50, 33, 130), (26, 1030, 64)]


def drawn(shape, bit_width, is_signed, density=1.0, seed=0):
    """Codes of the whole range of so many bits, of which a share is not drawn to be zero."""
    rng = np.random.default_rng(seed)
    low, high = (-(2 ** (bit_width - 1)), 2 ** (bit_width - 1)) if is_signed else (0, 2**bit_width)
    codes = rng.integers(low, high, shape).astype(np.int8 if is_signed else np.uint8)
    codes[rng.random(shape) >= density] = 0
    return codes


def exact(codes, weight):
    return codes.astype(np.int64) @ weight.T.astype(np.int64)


def combined(codes, weight, *bits, way="auto"):
    code_bits, weight_bits = bits or (8, 8)
    out = combine(torch.from_numpy(codes), torch.from_numpy(weight), code_bits=code_bits, weight_bits=weight_bits,
                  way=way)
    assert out.dtype == torch.int32
    return out.numpy()


@pytest.mark.covering
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("code_bits", WIDTHS)
def test_every_way_equals_int64_at_all_pairs_of_widths(simd, way, is_signed, code_bits):
    for weight_bits in WIDTHS:
        for number in (weight_bits % 3, weight_bits % 3 + 3):
            num_rows, dim, num_outputs = SHAPES[number]
            codes = drawn((num_rows, dim), code_bits, is_signed, (0.1, 1.0)[number % 2], number)
            weight = drawn((num_outputs, dim), weight_bits, True, seed=number + 50)
            assert np.array_equal(combined(codes, weight, code_bits, weight_bits, way=way), exact(codes, weight))


@pytest.mark.covering
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0)])
def test_empty_sides_give_empty_sums_or_zeros(simd, way, shape):
    num_rows, dim, num_outputs = shape
    out = combined(np.ones((num_rows, dim), np.uint8), np.ones((num_outputs, dim), np.int8), way=way)
    assert out.shape == (num_rows, num_outputs) and not out.any()


@pytest.mark.covering
@pytest.mark.parametrize("way", ["dense", "sparse"])
@pytest.mark.parametrize("fill, weight", [(255, -128), (255, 127), (-128, -128), (-128, 127)])
def test_the_largest_products_do_not_saturate(byte_level, way, fill, weight):
    codes = np.full((30, 900), fill).astype(np.uint8 if fill > 0 else np.int8)
    weights = np.full((40, 900), weight, np.int8)
    assert np.array_equal(combined(codes, weights, way=way), exact(codes, weights))


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("num_rows, dim, num_outputs", [
    (1, 1, 1), (15, 63, 16), (16, 64, 17), (37, 1400, 29), (33, 1600, 64), (70, 130, 81), (48, 3100, 96)])
def test_products_of_bytes_are_the_same_sums_at_every_level(byte_level, num_rows, dim, num_outputs, is_signed):
    """Rows, columns and outputs beside and across a tile's 16, 64 and 16, a block's 1,536 columns, and 4 panels."""
    codes, weight = drawn((num_rows, dim), 8, is_signed), drawn((num_outputs, dim), 8, True, seed=1)
    assert np.array_equal(combined(codes, weight, way="dense"), exact(codes, weight))


def test_sums_that_could_pass_32_bits_are_refused_before_any_is_made():
    longest = (2**31 - 1) // (255 * 128)
    codes, weight = np.full((1, longest), 255, np.uint8), np.full((1, longest), -128, np.int8)
    for way in ("dense", "sparse"):
        assert combined(codes, weight, way=way).item() == -longest * 255 * 128
    with pytest.raises(KernelError, match=r"sums of 65794 products of 8-bit codes and 8-bit weights can reach "
                                          r"2147516160, past the 2147483647 of 32 bits; use fewer bits or fewer"):
        combined(np.zeros((1, longest + 1), np.uint8), np.zeros((1, longest + 1), np.int8))
    few = np.ones((1, longest + 1), np.uint8)
    assert combined(few, few.view(np.int8), 1, 2).item() == longest + 1


@pytest.mark.parametrize("density, code_bits, weight_bits, way", [
    (0.005, 8, 4, "sparse"), (1.0, 8, 8, "dense"), (1.0, 1, 1, "bits"), (0.0, 8, 8, "sparse"), (0.2, 8, 8, "dense")])
def test_the_way_follows_from_rates_density_and_widths(density, code_bits, weight_bits, way, monkeypatch):
    # A product costs 1 among all codes, 10 of a code that is not zero, and 0.1 a pair of bits.
    rates = Rates(panel=0.0, table=0.0, dense=1.0, entry=10.0, scan=0.1, listed=0.1, bit=0.1, pack=0.1)
    monkeypatch.setattr(combination, "measured_rates", lambda level, num_threads: rates)
    assert cheapest_way((3000, 1500), 128, density, code_bits, weight_bits) == way


def codes_of(*shape, dtype=torch.uint8):
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize("make, complaint", [
    (lambda: combine(codes_of(2, 3, dtype=torch.float32), codes_of(2, 3, dtype=torch.int8)), "uint8 or int8 matrix"),
    (lambda: combine(codes_of(3, 2).T, codes_of(2, 3, dtype=torch.int8)), "contiguous uint8 or int8 matrix of codes"),
    (lambda: combine(codes_of(2, 3), codes_of(2, 3)), "int8 weights of shape .outputs, 3., found torch.uint8"),
    (lambda: combine(codes_of(2, 3), codes_of(2, 4, dtype=torch.int8)), "found torch.int8 of shape .2, 4."),
    (lambda: combine(codes_of(2, 3), codes_of(2, 3, dtype=torch.int8), code_bits=9), "a bit-width is 9"),
    (lambda: combine(codes_of(2, 3), codes_of(2, 3, dtype=torch.int8), weight_bits=0), "a bit-width is 0"),
    (lambda: combine(codes_of(2, 3), codes_of(2, 3, dtype=torch.int8), way="fast"), "way of a combination is 'fast'"),
    (lambda: combine(5 * codes_of(2, 3), codes_of(2, 3, dtype=torch.int8), code_bits=2, way="bits"),
     "codes of a combination need 3 bits, and 2 were named"),
    (lambda: combine(codes_of(2, 3), -9 * codes_of(2, 3, dtype=torch.int8), weight_bits=4, way="bits"),
     "weights of a combination need 5 bits, and 4 were named"),
    (lambda: combine(5 * codes_of(2, 70_000), codes_of(2, 70_000, dtype=torch.int8), code_bits=2),
     "codes of a combination need 3 bits, and 2 were named"),
])
def test_what_is_no_code_or_does_not_fit_is_refused(make, complaint):
    with pytest.raises(KernelError, match=complaint):
        make()
