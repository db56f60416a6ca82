"""Rows of packages times weight codes: the integers of the dense rows, and the decoder's refusals."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.errors import KernelError
from hpcgnn.lowbit.package import PackageFormat, PackageWriter, encode
from hpcgnn.lowbit.package_features import combine_packages

SHAPES = [(1, 1, 1), (5, 7, 3), (200, 129, 17), (70, 1433, 64), (130, 600, 130), (65, 512, 33)]


def drawn(num_rows, dim, is_signed, density=0.2, seed=0, width=None):
    """Rows of random widths and codes that fill them, and the widths; every fifth row is zero."""
    rng = np.random.default_rng(seed)
    bit_width = rng.integers(1 + is_signed, 9, num_rows, np.uint8) if width is None else np.full(num_rows, width)
    largest = (1 << (bit_width.astype(int) - is_signed)) - 1
    codes = rng.integers(-largest[:, None] if is_signed else 0, largest[:, None] + 1, (num_rows, dim))
    codes[rng.random(codes.shape) >= density] = 0
    codes[::5] = 0
    return codes.astype(np.int8 if is_signed else np.uint8), bit_width


def weights_of(num_outputs, dim, bits=4):
    return np.random.default_rng(1).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (num_outputs, dim)).astype(np.int8)


def exact(codes, weight):
    return codes.astype(np.int64) @ weight.T.astype(np.int64)


@pytest.mark.covering
@pytest.mark.parametrize("is_serial", [False, True])
@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.01, 0.3, 1.0])
def test_sums_of_packages_are_those_of_their_rows(simd, is_serial, is_signed, shape, density):
    num_rows, dim, num_outputs = shape
    codes, bit_width = drawn(num_rows, dim, is_signed, density)
    packages = encode(codes, bit_width, PackageFormat(is_signed=is_signed))
    for bits in (4, 8):
        weight = weights_of(num_outputs, dim, bits)
        sums = combine_packages(packages, weight, weight_bits=bits, is_serial=is_serial)
        assert sums.dtype == np.int32 and np.array_equal(sums, exact(codes, weight))


def test_a_range_of_rows_starts_inside_an_interval(simd):
    codes, bit_width = drawn(150, 40, False)
    writer = PackageWriter(40, interval=16)
    writer.append(codes, bit_width)
    packages, weight = writer.finish(), weights_of(9, 40)
    for first, last in [(0, 150), (17, 33), (16, 32), (149, 150), (40, 40), (150, 150)]:
        assert np.array_equal(combine_packages(packages, weight, first, last), exact(codes[first:last], weight))
    assert np.array_equal(combine_packages(packages, weight, 100), exact(codes[100:], weight))


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0)])
def test_empty_sides_give_empty_sums_or_zeros(simd, shape):
    num_rows, dim, num_outputs = shape
    packages = encode(np.ones((num_rows, dim), np.uint8), np.ones(num_rows, np.uint8))
    sums = combine_packages(packages, np.ones((num_outputs, dim), np.int8))
    assert sums.shape == (num_rows, num_outputs) and not sums.any()


@pytest.mark.parametrize("make, complaint", [
    (lambda packages: combine_packages(packages, np.ones((3, 4), np.int8)), "takes contiguous int8 weights of shape"),
    (lambda packages: combine_packages(packages, np.ones((3, 5), np.uint8)), "found torch.uint8"),
    (lambda packages: combine_packages(packages, np.full((3, 5), 9, np.int8), weight_bits=4),
     "weights of a combination need 5 bits, and 4 were named"),
    (lambda packages: combine_packages(packages, np.ones((3, 5), np.int8), weight_bits=9), "a bit-width is 9"),
    (lambda packages: combine_packages(packages, np.ones((3, 5), np.int8), 2, 9), "rows 2 to 9 were asked for"),
])
def test_weights_and_rows_that_do_not_fit_are_refused(make, complaint):
    with pytest.raises(KernelError, match=complaint):
        make(encode(np.ones((4, 5), np.uint8), np.ones(4, np.uint8)))


def test_sums_that_could_pass_32_bits_are_refused():
    packages = encode(np.ones((1, 65794), np.uint8), np.ones(1, np.uint8))
    with pytest.raises(KernelError, match="sums of 65794 products of 8-bit codes and 8-bit weights can reach"):
        combine_packages(packages, np.ones((1, 65794), np.int8))
    assert combine_packages(packages, np.ones((1, 65794), np.int8), weight_bits=2).item() == 65794
