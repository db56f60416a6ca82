"""Planes of bits and their products on the device: int64 NumPy and the host's bits, in every form of the product."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_bits import packed_words

from hpcgnn.errors import KernelError
from hpcgnn.ops import bit_gemm as contract
from hpcgnn.ops import bit_gemm as host
from hpcgnn.ops.bit_gemm import BitLines, CodeRange, LineValues, Rescaling, padded, words_of
from hpcgnn.ops.cuda import bit_gemm
from hpcgnn.ops.cuda.bit_gemm import FORM_ROWS, checked_form, form_of, packing_warps, product_blocks, shares_of

WIDTHS = range(1, 9)
FORMS = list(FORM_ROWS)
SHARES = (1, 2, 4)      # of a product's steps, a warp each
one_order = pytest.mark.parametrize("device", [1], indirect=True)    # of blocks, where others would take long


def random_codes(shape, bit_width, seed=0):
    return np.random.default_rng(seed).integers(0, 2**bit_width, shape, dtype=np.uint8)


def empty_lines(shape, bit_width, is_by_column, device, line_padding=8):
    num_lines, length = shape[::-1] if is_by_column else shape
    words = torch.zeros(bit_width, padded(num_lines, line_padding), words_of(length), dtype=torch.int32, device=device)
    return BitLines(words, num_lines, length)


def lines_of(codes, bit_width, is_by_column, device, line_padding=8):
    lines = empty_lines(codes.shape, bit_width, is_by_column, device, line_padding)
    bit_gemm.pack_codes(torch.from_numpy(codes).to(device), lines, is_by_column)
    return lines


def sides(left, right, left_width, right_width, device):
    return lines_of(left, left_width, False, device), lines_of(right, right_width, True, device)


def product(left, right, left_width, right_width, device, form, num_shares=None):
    both = sides(left, right, left_width, right_width, device)
    return bit_gemm.multiply_bits(*both, None, None, form, num_shares).cpu()


def exact(left, right):
    return left.astype(np.int64) @ right.astype(np.int64)


@pytest.mark.covering
@pytest.mark.parametrize("bit_width", [1, 3, 8])
@pytest.mark.parametrize("shape", [(1, 1), (8, 128), (13, 37), (35, 33), (0, 3), (3, 0)])
@pytest.mark.parametrize("line_padding", [8, 128])
def test_packed_words_are_those_of_the_oracle_and_come_back(device, bit_width, shape, line_padding):
    codes = random_codes(shape, bit_width)
    for matrix, is_by_column in ((codes, False), (codes.T, True)):
        lines = lines_of(codes, bit_width, is_by_column, device, line_padding)
        assert np.array_equal(lines.words.cpu(), packed_words(matrix, bit_width, line_padding))
        assert np.array_equal(bit_gemm.unpack_codes(lines).cpu(), matrix)
        sums = bit_gemm.sum_lines(lines)
        assert sums.dtype == torch.int64 and np.array_equal(sums.cpu(), matrix.sum(1))


@pytest.mark.covering
@one_order
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("left_width", WIDTHS)
@pytest.mark.parametrize("right_width", WIDTHS)
def test_products_equal_int64_at_all_pairs_of_widths(device, form, left_width, right_width):
    left, right = random_codes((5, 150), left_width), random_codes((150, 11), right_width, 1)
    assert np.array_equal(product(left, right, left_width, right_width, device, form), exact(left, right))


@pytest.mark.covering(1)
@one_order
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_shares", SHARES)
@pytest.mark.parametrize("left_width", WIDTHS)
def test_shares_of_the_steps_sum_to_the_product_at_all_widths(device, form, num_shares, left_width):
    # Five chunks, of which the last has one step of four; 13 columns are one pair of tiles, 40 are three in two groups.
    right_width, num_columns = 9 - left_width, (13, 40)[left_width % 2]
    left, right = random_codes((19, 2060), left_width), random_codes((2060, num_columns), right_width, 1)
    found = product(left, right, left_width, right_width, device, form, num_shares)
    assert np.array_equal(found, exact(left, right))


@pytest.mark.covering
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_shares", SHARES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 128, 8), (9, 512, 33), (70, 530, 5), (33, 1600, 17), (5, 5000, 3),
                                   (3, 0, 2)])
def test_a_share_without_a_chunk_and_rows_beyond_the_last_add_nothing(device, form, num_shares, shape):
    m, k, n = shape
    for widths in ((1, 2), (3, 1)):
        left, right = random_codes((m, k), widths[0]), random_codes((k, n), widths[1], 1)
        assert np.array_equal(product(left, right, *widths, device, form, num_shares), exact(left, right))


@pytest.mark.covering
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0)])
def test_empty_sides_give_empty_products_or_zeros(device, form, shape):
    m, k, n = shape
    left, right = random_codes((m, k), 2), random_codes((k, n), 3)
    out = product(left, right, 2, 3, device, form)
    assert out.shape == (m, n) and not out.any()
    assert_ends_as_on_the_host(left, right, rescaling(m, n, device, bias=torch.ones(n, device=device)), device, form)


@one_order
@pytest.mark.parametrize("form", FORMS)
def test_the_largest_sum_that_is_allowed_is_exact(device, form):
    longest = (2**31 - 1) // 255**2
    words = torch.full((8, 8, words_of(longest)), -1, dtype=torch.int32)
    words[:, 1:], words[:, :, -(-longest // 32):] = 0, 0
    words[:, 0, longest // 32] = (1 << longest % 32) - 1
    lines = BitLines(words.to(device), 1, longest)
    assert bit_gemm.multiply_bits(lines, lines, None, None, form).item() == longest * 255**2


def rescaling(num_rows, num_columns, device, seed=0, **more):
    rng = np.random.default_rng(seed)
    sides = [LineValues(*(torch.from_numpy(rng.normal(size=number).astype(np.float32)).to(device) for _ in range(3)))
             for number in (num_rows, num_columns)]
    return Rescaling(*sides, **more)


def on_host(how):
    """The same rescaling, on the CPU."""
    sides = [LineValues(*(part.cpu() for part in (side.step, side.zero_point, side.sum)))
             for side in (how.rows, how.columns)]
    gain, bias = (None if one is None else one.cpu() for one in (how.gain, how.bias))
    return Rescaling(*sides, gain=gain, bias=bias, is_by_row=how.is_by_row, has_relu=how.has_relu)


def assert_ends_as_on_the_host(left, right, how, device, form, num_shares=None):
    """Values and codes of a product, whose words of padding are written too."""
    sides_there, sides_here = sides(left, right, 2, 3, device), sides_on_host(left, right, 2, 3)
    for codes in (None, CodeRange(5, -20.0, 3.0, 0.5), CodeRange(3, -5.0, 1.7, 0.0)):
        found = bit_gemm.multiply_bits(*sides_there, how, codes, form, num_shares)
        expected = host._multiply_bits.host(*sides_here, on_host(how), codes)
        if codes is not None:
            assert (found.num_lines, found.length) == (expected.num_lines, expected.length)
            found, expected = found.words, expected.words
        assert torch.equal(found.cpu(), expected)


def sides_on_host(left, right, left_width, right_width):
    return (contract.pack_codes(torch.from_numpy(left), left_width, False),
            contract.pack_codes(torch.from_numpy(right), right_width, True))


@pytest.mark.covering
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(5, 40, 3), (17, 200, 33), (3, 130, 140)])
@pytest.mark.parametrize("is_by_row, has_relu, has_gain", [(False, False, True), (True, True, True),
                                                           (False, False, False)])
@pytest.mark.parametrize("num_shares", [1, 4])
def test_the_end_of_a_product_is_the_hosts_bit_for_bit(device, form, shape, is_by_row, has_relu, has_gain, num_shares):
    m, k, n = shape
    left, right = random_codes((m, k), 2), random_codes((k, n), 3, 1)
    gain, bias = (torch.from_numpy(np.random.default_rng(seed).normal(size=m if is_by_row else n).astype(np.float32))
                  .to(device) if has_gain else None for seed in (5, 6))
    how = rescaling(m, n, device, gain=gain, bias=bias, is_by_row=is_by_row, has_relu=has_relu)
    assert_ends_as_on_the_host(left, right, how, device, form, num_shares)


@pytest.mark.covering
@pytest.mark.parametrize("rounding_offset", [0.0, 0.5])
@pytest.mark.parametrize("is_by_column", [False, True])
@pytest.mark.parametrize("is_per_line", [False, True])
def test_planes_of_values_are_the_host_s(device, rounding_offset, is_by_column, is_per_line):
    values = torch.from_numpy(np.random.default_rng(3).normal(size=(37, 45)).astype(np.float32))
    num_lines = values.shape[is_by_column] if is_per_line else 1
    low, step = torch.linspace(-2, -1, num_lines), torch.linspace(0.1, 0.2, num_lines)
    expected = contract.pack_values(values, CodeRange(4, low, step, rounding_offset), is_by_column)
    lines = empty_lines(values.shape, 4, is_by_column, device)
    codes = CodeRange(4, low.to(device), step.to(device), rounding_offset)
    bit_gemm.pack_values(values.to(device), codes, lines, is_by_column)
    assert torch.equal(lines.words.cpu(), expected.words)


@pytest.mark.parametrize("capability, forms", [((7, 0), ["popcount"] * 2), ((7, 5), ["popcount"] * 2),
                                               ((8, 0), ["mma16", "mma8"]), ((9, 0), ["mma16", "mma8"]),
                                               ((10, 0), ["popcount"] * 2), ((12, 0), ["popcount"] * 2)])
def test_tensor_cores_multiply_bits_where_they_have_and(capability, forms):
    assert [form_of(capability, is_small) for is_small in (False, True)] == forms


@pytest.mark.parametrize("num_rows, name", [(32, "multiply_mma8"), (33, "multiply_mma16")])
def test_small_products_take_the_small_tile_by_themselves(emulated, num_rows, name):
    left, right = random_codes((num_rows, 130), 1), random_codes((130, 5), 2, 1)
    assert np.array_equal(product(left, right, 1, 2, "cpu", None), exact(left, right))
    assert emulated.launches[-1][0] == name


def test_a_form_that_there_is_not_is_refused():
    with pytest.raises(KernelError, match="popcount, mma8, mma16, found 'mma32'"):
        checked_form("mma32", torch.device("cpu"), False)


@pytest.mark.parametrize("num_rows, num_groups, num_steps, least_rows, num_shares", [
    (2048, 1, 16, 1, 4), (8192, 1, 64, 1, 4), (16384, 1, 128, 1, 2), (32768, 1, 256, 1, 1), (8192, 4, 64, 1, 1),
    (2048, 1, 4, 1, 1), (2048, 1, 5, 1, 2), (2048, 1, 12, 1, 2), (2048, 1, 13, 1, 4), (2048, 1, 0, 1, 1),
    (2048, 1, 16, 32, 2), (2048, 1, 16, 64, 1), (0, 1, 16, 1, 4)])
def test_steps_are_divided_where_blocks_are_few_and_chunks_are_enough(num_rows, num_groups, num_steps, least_rows,
                                                                      num_shares):
    assert shares_of(num_rows, num_groups, num_steps, "mma16", 132, least_rows) == num_shares
    assert shares_of(num_rows, num_groups, num_steps, "mma16", 0, least_rows) == 1


def test_a_product_of_few_rows_divides_its_steps_by_itself(emulated, monkeypatch):
    left, right = random_codes((40, 1100), 1), random_codes((1100, 5), 2, 1)
    found = []
    monkeypatch.setattr(bit_gemm, "shares_of", lambda *known: found.append(shares_of(*known)) or found[-1])
    assert np.array_equal(product(left, right, 1, 2, "cpu", None), exact(left, right))
    assert found == [2] and emulated.launches[-1][1] == (2, 1, 1)      # three chunks; 32 of 40 rows a block


@pytest.mark.parametrize("num_shares", SHARES)
@pytest.mark.parametrize("form", FORMS)
def test_every_element_of_a_product_belongs_to_one_warp(form, num_shares):
    rows_a_block = 4 // num_shares * FORM_ROWS[form]
    for num_rows in (0, 1, 31, 32, 33, 64, 65, 1000):
        for num_groups in (1, 5):
            num_blocks, left_over = divmod(product_blocks(num_rows, num_groups, form, num_shares), num_groups)
            assert left_over == 0
            assert num_rows <= num_blocks * rows_a_block < num_rows + rows_a_block
    assert product_blocks(7, 0, form, num_shares) == 0


def test_every_word_belongs_to_one_warp():
    for shape in ((0, 7), (7, 0), (1, 1), (3, 33), (64, 31)):
        assert packing_warps(*shape, False) == shape[0] * -(-shape[1] // 32)
        assert packing_warps(*shape, True) == -(-shape[1] // 32) * -(-shape[0] // 32)
