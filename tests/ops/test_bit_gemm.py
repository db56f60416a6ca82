"""Planes of bits against the oracle one bit at a time, and their products against int64, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import SIMD_FLAGS, processor_flags
from reference_bits import packed_words

from hpcgnn.errors import KernelError
from hpcgnn.ops.bit_gemm import (
    BitLines,
    CodeRange,
    LineValues,
    Rescaling,
    multiply_bits,
    pack_codes,
    pack_values,
    sum_lines,
    unpack_codes,
)

WIDTHS = range(1, 9)
SHAPES = [(1, 1, 1), (5, 7, 3), (8, 128, 8), (9, 129, 17), (33, 300, 70), (40, 64, 16)]
COUNTING_FLAGS = {"avx512_vpopcntdq", "avx512_bitalg", "avx512_vnni"}


def random_codes(shape, bit_width, seed=0):
    return np.random.default_rng(seed).integers(0, 2**bit_width, shape, dtype=np.uint8)


def packed(left, right, left_width, right_width):
    return (pack_codes(torch.from_numpy(left), left_width, False),
            pack_codes(torch.from_numpy(right), right_width, True))


def product(left, right, left_width, right_width):
    return multiply_bits(*packed(left, right, left_width, right_width)).numpy()


def exact(left, right):
    return left.astype(np.int64) @ right.astype(np.int64)


@pytest.mark.covering
@pytest.mark.parametrize("bit_width", WIDTHS)
@pytest.mark.parametrize("shape", [(1, 1), (8, 128), (13, 37), (70, 513)])
@pytest.mark.parametrize("line_padding", [8, 128])
def test_packed_words_are_those_of_the_oracle_and_come_back(simd, bit_width, shape, line_padding):
    codes = random_codes(shape, bit_width)
    rows = pack_codes(torch.from_numpy(codes), bit_width, False, line_padding)
    columns = pack_codes(torch.from_numpy(codes), bit_width, True, line_padding)
    assert np.array_equal(rows.words, packed_words(codes, bit_width, line_padding))
    assert np.array_equal(columns.words, packed_words(codes.T, bit_width, line_padding))
    assert np.array_equal(unpack_codes(rows), codes) and np.array_equal(unpack_codes(columns), codes.T)
    assert np.array_equal(sum_lines(rows), codes.sum(1)) and np.array_equal(sum_lines(columns), codes.sum(0))


@pytest.mark.covering
@pytest.mark.parametrize("left_width", WIDTHS)
@pytest.mark.parametrize("right_width", WIDTHS)
def test_products_equal_int64_at_all_pairs_of_widths(simd, left_width, right_width):
    for number in ((left_width + right_width) % 3, (left_width + right_width) % 3 + 3):
        m, k, n = SHAPES[number]
        left, right = random_codes((m, k), left_width, number), random_codes((k, n), right_width, number + 50)
        assert np.array_equal(product(left, right, left_width, right_width), exact(left, right)), (m, k, n)


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0)])
def test_empty_sides_give_empty_products_or_zeros(simd, shape):
    m, k, n = shape
    out = product(random_codes((m, k), 2), random_codes((k, n), 3), 2, 3)
    assert out.shape == (m, n) and not out.any()


@pytest.mark.parametrize("widths", [(1, 1), (1, 4), (8, 8)])
def test_products_longer_than_a_block_of_rows_and_a_chunk_of_columns(simd, widths):
    left, right = random_codes((75, 300), widths[0]), random_codes((300, 700), widths[1], 1)
    assert np.array_equal(product(left, right, *widths), exact(left, right))


@pytest.mark.parametrize("widths", [(1, 1), (2, 3), (8, 8)])
def test_processors_that_do_not_count_bits_give_the_same_sums(monkeypatch, widths):
    missing = (SIMD_FLAGS["avx512"] | COUNTING_FLAGS) - processor_flags()
    if missing:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    left, right = random_codes((37, 400), widths[0]), random_codes((400, 29), widths[1], 1)
    monkeypatch.setenv("HPCGNN_SIMD", "avx512")
    monkeypatch.setenv("HPCGNN_VPOPCNT", "0")
    assert np.array_equal(product(left, right, *widths), exact(left, right))


@pytest.mark.parametrize("rounding_offset", [0.0, 0.5])
@pytest.mark.parametrize("is_by_column", [False, True])
def test_values_are_quantized_as_the_formula_says(simd, rounding_offset, is_by_column):
    values = np.random.default_rng(3).normal(size=(70, 90)).astype(np.float32)
    num_lines = values.shape[is_by_column]
    low = np.linspace(-2, -1, num_lines, dtype=np.float32)
    step = np.linspace(0.1, 0.2, num_lines, dtype=np.float32)
    codes = CodeRange(4, torch.from_numpy(low), torch.from_numpy(step), rounding_offset)
    lines = pack_values(torch.from_numpy(values), codes, is_by_column)
    turned = values.T if is_by_column else values
    expected = np.floor((turned - low[:, None]) / step[:, None] + np.float32(rounding_offset))
    assert np.array_equal(unpack_codes(lines), np.clip(expected, 0, 15))


def rescaling(num_rows, num_columns, seed=0, **more):
    rng = np.random.default_rng(seed)
    sides = [LineValues(*(torch.from_numpy(rng.normal(size=number).astype(np.float32)) for _ in range(3)))
             for number in (num_rows, num_columns)]
    return Rescaling(*sides, **more)


def rescaled(sums, how, length):
    """The formula of bit_gemm.h in the same order, in float32."""
    row, column = ([part.numpy() for part in (side.step, side.zero_point, side.sum)]
                   for side in (how.rows, how.columns))
    row = [part[:, None] for part in row]
    values = (row[0] * column[0]) * sums.astype(np.float32) + (
        (row[1] * column[2] + row[2] * column[1]) + np.float32(length) * (row[1] * column[1]))
    shape = (-1, 1) if how.is_by_row else (1, -1)
    if how.gain is not None:
        values = values * how.gain.numpy().reshape(shape)
    if how.bias is not None:
        values = values + how.bias.numpy().reshape(shape)
    return np.maximum(values, 0) if how.has_relu else values


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(5, 40, 3), (41, 200, 33), (9, 130, 600)])
@pytest.mark.parametrize("is_by_row", [False, True])
@pytest.mark.parametrize("has_relu", [False, True])
def test_the_end_of_a_product_scales_activates_and_quantizes_bit_for_bit(simd, shape, is_by_row, has_relu):
    m, k, n = shape
    left, right = random_codes((m, k), 2), random_codes((k, n), 3, 1)
    vectors = [torch.from_numpy(np.random.default_rng(seed).normal(size=m if is_by_row else n).astype(np.float32))
               for seed in (5, 6)]
    how = rescaling(m, n, gain=vectors[0], bias=vectors[1], is_by_row=is_by_row, has_relu=has_relu)
    expected = rescaled(exact(left, right), how, k)
    assert np.array_equal(multiply_bits(*packed(left, right, 2, 3), how), expected)
    codes = CodeRange(5, -20.0, 3.0, 0.5)
    lines = multiply_bits(*packed(left, right, 2, 3), how, codes)
    expected_codes = np.clip(np.floor((expected - np.float32(-20)) / np.float32(3) + np.float32(0.5)), 0, 31)
    assert (lines.num_lines, lines.length) == (m, n)
    assert np.array_equal(lines.words, packed_words(expected_codes, 5))


def test_sums_that_could_pass_32_bits_are_refused_before_any_is_made():
    longest = (2**31 - 1) // 255**2
    sides = [BitLines(torch.zeros(8, 8, -(-length // 128) * 4, dtype=torch.int32), 1, length)
             for length in (longest, longest + 1)]
    assert multiply_bits(sides[0], sides[0]).item() == 0
    with pytest.raises(KernelError, match=r"sums of 33026 products of 8-bit and 8-bit codes can reach 2147515650, past "
                                          r"the 2147483647 of 32 bits; use fewer bits or contract fewer columns"):
        multiply_bits(sides[1], sides[1])


def test_the_largest_sum_that_is_allowed_is_exact(simd):
    longest = (2**31 - 1) // 255**2
    left, right = np.full((1, longest), 255, np.uint8), np.full((longest, 1), 255, np.uint8)
    assert product(left, right, 8, 8).item() == longest * 255**2


@pytest.mark.parametrize("make, complaint", [
    (lambda: pack_codes(torch.zeros(2, 2, dtype=torch.uint8), 9, False), "a bit-width is 9; expected 1 to 8"),
    (lambda: pack_codes(torch.zeros(2, 2, dtype=torch.uint8), 0, False), "a bit-width is 0; expected 1 to 8"),
    (lambda: pack_codes(torch.zeros(2, 2), 1, False), "packed from a contiguous torch.uint8 matrix"),
    (lambda: pack_codes(torch.zeros(2, 2, dtype=torch.uint8), 1, False, 16), "multiples of 8 or 128, found 16"),
    (lambda: BitLines(torch.zeros(1, 8, 3, dtype=torch.int32), 2, 100), r"shape \(bits, 8 or .* 4\)"),
    (lambda: BitLines(torch.zeros(1, 8, 4), 2, 100), "contiguous int32 words"),
    (lambda: BitLines(torch.zeros(9, 8, 4, dtype=torch.int32), 2, 100), "a bit-width is 9"),
    (lambda: multiply_bits(pack_codes(torch.zeros(2, 3, dtype=torch.uint8), 1, False),
                      pack_codes(torch.zeros(4, 2, dtype=torch.uint8), 1, True)),
     "contracts 3 columns of its left side with 4 rows of its right side"),
    (lambda: pack_values(torch.zeros(2, 3), CodeRange(2, torch.zeros(3), torch.ones(3), 0.0), False),
     "2 lines need 1 or 2 lows and steps, found 3 and 3"),
])
def test_what_is_no_code_or_does_not_fit_is_refused(make, complaint):
    with pytest.raises(KernelError, match=complaint):
        make()
